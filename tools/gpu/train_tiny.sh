#!/usr/bin/env bash
# Trains workloads/checkpoints/tiny_trained on one H200, from the repository root of a bare, offline machine with PyTorch 2.11, tokenizers,
# safetensors and numpy. Text is written and encoded there; nothing is fetched.
#
#   tools/gpu/train_tiny.sh OUT [SECONDS [ARGUMENTS OF stack.training ...]]
#
# OUT gets model.safetensors, config.json, tokenizer files, draft/ (4 MiB in all) and log.jsonl. With SECONDS a run ends by then with exit code 3 and
# the same command goes on from build/tiny_trained; where a command may last ten minutes: train_tiny.sh OUT 570, twice. An unfinished run leaves
# its state in OUT/state (7 MiB a file; target/weights.safetensors, target/state.json and told.safetensors are all that the drafts need): copied into
# build/tiny_trained of another machine, the command goes on there. Its inductor/ spares that machine a minute of compiling.
set -euo pipefail
out=${1:?usage: train_tiny.sh OUT [SECONDS]}
seconds=${2:-100000}
more=("${@:3}")
began=$(date +%s)
work=build/tiny_trained
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=8 TOKENIZERS_PARALLELISM=false
cores=$(nproc)
mkdir -p "$work" "$out"
export TORCHINDUCTOR_CACHE_DIR=$PWD/$work/inductor
if [[ ! -f $work/corpus.done && ! -f $work/told.safetensors ]]; then
  python3 -m workloads.corpus train "$work/corpus" --documents 450000 --processes "$cores"
  python3 -m workloads.corpus mini-gsm "$work/questions.jsonl"
  python3 -m workloads.corpus retrieval "$work/needles.jsonl"
  touch "$work/corpus.done"
fi
code=0
python3 -m stack.training "$work" --corpus "$work/corpus" --questions "$work/questions.jsonl" --needles "$work/needles.jsonl" --out "$out" --recipe h200 \
  --processes "$cores" --threads 8 --seconds $((seconds - ($(date +%s) - began) - 25)) "${more[@]}" || code=$?
cp "$work/log.jsonl" "$out/log.jsonl"
if [[ $code == 3 ]]; then
  mkdir -p "$out/state"
  for part in target drafts told.safetensors log.jsonl inductor; do
    if [[ -e $work/$part ]]; then cp -r "$work/$part" "$out/state/"; fi
  done
fi
exit $code
