#!/usr/bin/env bash
# All that needs a GPU in one command: checks, then speed. Needs python3 with torch, transformers and accelerate only.
#   bash scripts/benchmarks/gpu.sh FOLDER [--device cpu --tiny] [--only PART ...] [--seconds 520]
# FOLDER gets gpu.md (the tables), gpu.json (all rows) and gpu.log (what the parts printed).
set -euo pipefail
exec python3 -u "$(dirname "${BASH_SOURCE[0]}")/gpu.py" "$@"
