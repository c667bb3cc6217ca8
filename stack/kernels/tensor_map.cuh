// Boxes of a matrix in global memory by the copy engine, as `tensor_map.py` describes them. Knows no op.
#pragma once
#include <cstdint>

struct alignas(64) TensorMap { uint64_t words[16]; };

#ifdef KERNELS_ON_CPU
#include <tensor_map_on_cpu.h>
#else

// The box whose first byte is `x` of row `y`, into shared memory that begins at a multiple of 1,024; `barrier` counts its bytes. Rows of 128 bytes, 128-byte swizzle.
__device__ __forceinline__ void tensor_load(uint32_t to, const TensorMap* map, int x, int y, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier)
               : "memory");
}

#endif
