// Numbers as integers of the same order; a NaN lies below all of them. Knows no op.
#pragma once
#include <cstdint>

__device__ __forceinline__ uint32_t sortable(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0u;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float unsorted(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }
