#!/usr/bin/env bash
# Every table of RESULTS.md in one sitting, on a CPU with nothing else running: an hour and a half of one thread.
#   bash scripts/benchmarks/sitting.sh FOLDER [DATA [TABLE ...]]
# FOLDER gets TABLE.md for each, and all of them as sitting.md. What is there is not measured again: the same command
# goes on after an interruption. A table with a void row is measured once more; the first one is kept as TABLE.void.
# DATA: the folder that end_to_end.py reads; without it (or as "") that table is left out.
# TABLE: some of them, as named below.
set -euo pipefail
folder=${1:?usage: sitting.sh FOLDER [DATA [TABLE ...]]}
data=${2:-}
shift $(($# < 2 ? $# : 2))
wanted=" $* "
mkdir -p "$folder"
folder=$(realpath "$folder")
data=${data:+$(realpath "$data")}
cd "$(dirname "${BASH_SOURCE[0]}")"

tables=()
failed=0
measure() { # TABLE SCRIPT ARGUMENT...
    local table=$1
    [[ $wanted == "  " || $wanted == *" $table "* ]] || return 0
    tables+=("$table")
    [[ -e $folder/$table.md ]] && return 0
    local attempt
    for attempt in first second; do
        echo "$(date +%H:%M:%S) $table (load $(cut -d' ' -f1 /proc/loadavg 2> /dev/null || echo unknown))"
        if ! python3 -u "${@:2}" > "$folder/$table.part" 2> "$folder/$table.log"; then
            failed=1
            echo "$table: failed, see $folder/$table.log" >&2
            return 0
        fi
        grep -q "| void |" "$folder/$table.part" || break
        [[ $attempt == second ]] || mv "$folder/$table.part" "$folder/$table.void"
    done
    mv "$folder/$table.part" "$folder/$table.md"
}

measure decoder decoder_step.py --dtype fp32 --rounds 9
measure decoder_bf16 decoder_step.py --dtype bf16 --rounds 9
measure loss cross_entropy.py --rounds 9
measure masked_lm mlm_step.py --shape small --rounds 7
measure masked_lm_base mlm_step.py --shape base --rounds 5 --arms native ours
measure encoder_decoder seq2seq_step.py --rounds 9
measure experts moe_step.py --rounds 9
measure images vit_step.py --rounds 9
measure image_loader images.py
measure windows length.py --dtype fp32 bf16 --length 1024 4096 --rounds 7 --plot "" \
    --kinds full "full, two-sided" sliding strided local+global none
measure length length.py --dtype fp32 --rounds 3
measure backends attention_backends.py
measure native_attention native_attention.py
measure generate generate.py --rounds 9
measure generate_static generate.py --rounds 9 --model medium --prompt 32 --static
measure decoding decoding_throughput.py --rounds 5
measure first_step first_step.py
measure trainer trainer_overhead.py --rounds 15
measure data data_pipeline.py --rounds 9
measure data_processes data_pipeline.py --rounds 5 --bytes 8000000 --beside processes --clock wall
if [[ -n $data ]]; then
    measure end_to_end end_to_end.py --data "$data"
else
    echo "end_to_end: left out, it needs DATA"
fi

for table in "${tables[@]}"; do
    [[ ! -e $folder/$table.md ]] || { printf '## %s\n\n' "$table" && cat "$folder/$table.md" && echo; }
done > "$folder/sitting.md"
echo "$folder/sitting.md"
exit $failed
