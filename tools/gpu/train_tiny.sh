#!/usr/bin/env bash
# Trains workloads/checkpoints/tiny_trained on one H200, from the repository root of a bare, offline machine with PyTorch 2.11, tokenizers,
# safetensors and numpy. Text is written and encoded there; nothing is fetched.
#
#   tools/gpu/train_tiny.sh OUT [SECONDS]
#
# OUT gets model.safetensors, config.json, tokenizer files, draft/ (4 MiB in all) and log.jsonl. With SECONDS a run ends by then with exit code 3 and
# the same command goes on from build/tiny_trained; where a command may last ten minutes: train_tiny.sh OUT 570, twice. An unfinished run leaves
# the target's state in OUT/state (7 MiB a file): copied into build/tiny_trained of another machine, the command goes on there.
set -euo pipefail
out=${1:?usage: train_tiny.sh OUT [SECONDS]}
seconds=${2:-100000}
began=$(date +%s)
work=build/tiny_trained
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=8 TOKENIZERS_PARALLELISM=false
cores=$(nproc)
mkdir -p "$work" "$out"
if [[ ! -f $work/corpus.done ]]; then
  python3 -m workloads.corpus train "$work/corpus" --documents 600000 --processes "$cores"
  python3 -m workloads.corpus mini-gsm "$work/questions.jsonl"
  touch "$work/corpus.done"
fi
code=0
python3 -m stack.training "$work" --corpus "$work/corpus" --questions "$work/questions.jsonl" --out "$out" --recipe h200 \
  --processes "$cores" --threads 8 --seconds $((seconds - ($(date +%s) - began) - 25)) || code=$?
cp "$work/log.jsonl" "$out/log.jsonl"
if [[ $code == 3 ]]; then
  mkdir -p "$out/state" && cp -r "$work/target" "$out/state/"
fi
exit $code
