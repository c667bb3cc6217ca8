#!/usr/bin/env bash
# Packs the kernel packages that a bare, offline Hopper machine lacks, for Python 3.12 on x86-64 with PyTorch 2.11 (CUDA 13.0) and Triton 3.6.
#
#   pack.sh OUT [--only] [NAME==VERSION ...]      writes OUT/site.tar.xz (about 12 MiB); extra packages are added without their dependencies
#
# --only: nothing but the named ones.
#
# The pins are those that were seen to work together. Other builds of FlashKDA and DeepGEMM import but misread tensors of this PyTorch.
set -euo pipefail
out=${1:?usage: pack.sh OUT [--only] [NAME==VERSION ...]}
shift
packages=(
  sgl-deep-gemm==0.1.5.post1 apache-tvm-ffi==0.1.11 fla-core==0.6.0 tokenspeed-flashkda==0.0.1.post20260526 msgspec==0.23.0
)
if [ "${1:-}" = --only ]; then
  shift
  packages=()
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
platforms=()
for tag in manylinux_2_28 manylinux_2_27 manylinux_2_25 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux1; do
  platforms+=(--platform "${tag}_x86_64")
done
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}" \
  -d "$work/wheels" "${packages[@]}" "$@"
mkdir "$work/site"
for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$work/site"; done
rm -rf "$work"/site/*.data "$work"/site/nixl_ep_cu13  # command lines, and NIXL's expert-parallel library: megabytes that no run needs
# TileLang for other vendors' GPUs and its compiler's sources, additions for other versions of PyTorch, a library that z3 has twice
rm -rf "$work"/site/tilelang/3rdparty/{composable_kernel,tvm/src,cutlass/tools} "$work"/site/torch_c_dlpack_ext/*.so
[ ! -e "$work/site/z3/lib/libz3.so.4.15" ] || ln -sf libz3.so.4.15 "$work/site/z3/lib/libz3.so"
mkdir -p "$out"
tar -C "$work/site" -cf - . | xz -T0 -6 > "$out/site.tar.xz"
du -h "$out/site.tar.xz"
