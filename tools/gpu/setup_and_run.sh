#!/usr/bin/env bash
# On a bare Hopper machine, from the repository root: unpack the packages of pack.sh, restore compiled kernels, run a command, keep what it compiled.
#
#   setup_and_run.sh PACKED COMPILED COMMAND [ARGUMENT ...]
#
# PACKED holds site.tar.xz. COMPILED is an archive of compiled kernels (Triton, DeepGEMM, CUDA): read when it exists, written again at the end, so that
# the next machine compiles nothing. The exit code is the command's.
set -uo pipefail
packed=${1:?usage: setup_and_run.sh PACKED COMPILED COMMAND [ARGUMENT ...]}
compiled=${2:?usage: setup_and_run.sh PACKED COMPILED COMMAND [ARGUMENT ...]}
shift 2
site=$(mktemp -d)
xz -dc "$packed/site.tar.xz" | tar xf - -C "$site" || exit 1
python3 -m tools.gpu.calls.compiled restore "$compiled" build || exit 1
export PYTHONPATH=$site:$PWD PYTHONUNBUFFERED=1 TRITON_CACHE_DIR=$PWD/build/jit/triton DG_JIT_CACHE_DIR=$PWD/build/jit/dg TILELANG_CACHE_DIR=$PWD/build/jit/tilelang
"$@"
code=$?
python3 -m tools.gpu.calls.compiled keep "$compiled.new" build && mv "$compiled.new" "$compiled"
exit $code
