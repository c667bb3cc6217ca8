// Eight neighbouring BF16 values, 16 bytes, and their FP32 values. Knows no op.
#pragma once
#include <cuda_bf16.h>
#include <cstdint>

__device__ __forceinline__ void unpack(const uint4& raw, float (&x)[8]) {
  const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 f = __bfloat1622float2(pairs[i]);
    x[i * 2] = f.x, x[i * 2 + 1] = f.y;
  }
}

__device__ __forceinline__ uint4 pack(const float (&x)[8]) {
  uint4 raw;
  __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&raw);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(x[i * 2], x[i * 2 + 1]);
  return raw;
}
