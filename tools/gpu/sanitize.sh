#!/usr/bin/env bash
# Runs the kernels' checks under compute-sanitizer, four ops at once: out-of-bounds and misaligned accesses, then races in shared memory.
#
#   sanitize.sh OUT [OP ...]      all ops without names; OUT takes a log an op and tool
#
# compute-sanitizer comes from the PATH, from /usr/local/cuda, or from packages that `pack.sh OUT nvidia-cuda-sanitizer-api==13.0.85` added. The exit
# code is 1 when any op has an error; its log says where.
set -uo pipefail
out=${1:?usage: sanitize.sh OUT [OP ...]}
shift
mkdir -p "$out"
tool=$(command -v compute-sanitizer || true)
for folder in /usr/local/cuda/bin ${PYTHONPATH:+${PYTHONPATH%%:*}/nvidia/cu13/bin}; do
  [[ -z $tool && -f $folder/compute-sanitizer ]] && tool=$folder/compute-sanitizer
done
[[ -n $tool ]] || { echo "there is no compute-sanitizer; add nvidia-cuda-sanitizer-api==13.0.85 to pack.sh" >&2; exit 1; }
chmod +x "$tool" "${tool%/*}"/TreeLauncher* 2>/dev/null
ops=("$@")
[[ ${#ops[@]} -gt 0 ]] || mapfile -t ops < <(python3 -c 'from tools.gpu.micro.checks import checks; print(*dict.fromkeys(c.op for c in checks()), sep="\n")')
one() {
  timeout 240 "$1" --tool "$2" --error-exitcode 9 --target-processes all python3 -m tools.gpu.micro --only "$3" --skip-times >"$4/$3.$2.log" 2>&1
  code=$?
  echo "$3 $2: exit $code"
  return $((code != 0))
}
export -f one
for kind in memcheck racecheck; do printf '%s\n' "${ops[@]}" | xargs -P 4 -I{} bash -c 'one "$@"' _ "$tool" "$kind" {} "$out" || failed=1; done
exit "${failed:-0}"
