#!/usr/bin/env bash
# Measures one worker's loop on a GPU machine without a package index: prefill and decode of the quarter model.
#
#   tools/gpu/engine/run.sh SITE OUT CASE...      CASE is a line of cases.txt, by its first word
#
# SITE is a folder of Python packages that the machine lacks (TileLang, DeepGEMM, FlashKDA, msgspec, pyzmq); OUT takes one
# JSON file and one log a case. Every case has its own time limit, so that a slow one does not cost the others.
set -uo pipefail
site=${1:?SITE} out=${2:?OUT}
shift 2
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../../..:$site" PYTHONUNBUFFERED=1
mkdir -p "$out"
for case in "$@"; do
  read -r _ limit config arguments < <(grep -E "^$case " "$here/cases.txt") || { echo "no case $case in cases.txt" >&2; continue; }
  read -ra words <<<"$arguments"
  begun=$(date +%s)
  timeout "$limit" python3 -m stack.engine.bench "$here/$config" "${words[@]}" >"$out/$case.json" 2>"$out/$case.log"
  status=$?
  echo "== $case: exit $status after $(($(date +%s) - begun)) s"
  if [[ $status -eq 0 ]]; then tail -n 1 "$out/$case.json" | cut -c1-1500; else tail -n 25 "$out/$case.log"; fi
done
