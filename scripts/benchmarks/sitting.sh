#!/usr/bin/env bash
# Every case of cases.py in one sitting, on a CPU with nothing else running: an hour and a half of one thread.
#   bash scripts/benchmarks/sitting.sh FOLDER
# FOLDER gets NAME.md for each case, and all of them as sitting.md. Existing files are not measured again: the same
# command goes on after an interruption. A case with a void row is measured again; its first result is kept as NAME.void.
set -euo pipefail
folder=${1:?usage: sitting.sh FOLDER}
mkdir -p "$folder"
folder=$(realpath "$folder")
cd "$(dirname "${BASH_SOURCE[0]}")"

failed=0
names=$(python3 run.py --list | cut -d ' ' -f 1)
for name in $names; do
    [[ ! -e $folder/$name.md ]] || continue
    for attempt in first second; do
        echo "$(date +%H:%M:%S) $name (load $(cut -d' ' -f1 /proc/loadavg 2> /dev/null || echo unknown))"
        if ! python3 -u run.py "$name" > "$folder/$name.part" 2> "$folder/$name.log"; then
            failed=1
            echo "$name: failed, see $folder/$name.log" >&2
            continue 2
        fi
        grep -q "| void |" "$folder/$name.part" || break
        [[ $attempt == second ]] || mv "$folder/$name.part" "$folder/$name.void"
    done
    mv "$folder/$name.part" "$folder/$name.md"
done

for name in $names; do
    [[ ! -e $folder/$name.md ]] || { printf '## %s\n\n' "$name" && cat "$folder/$name.md" && echo; }
done > "$folder/sitting.md"
echo "$folder/sitting.md"
exit $failed
