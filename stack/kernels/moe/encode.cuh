// Sixteen neighbouring values of a thread, eight threads to a group of 128: codes of the group's scale, as every quantiser here makes them.
#pragma once
#include <cuda_bf16.h>
#include <cstdint>

#include "../hopper.cuh"

// Sixteen values from 16-byte aligned memory.
__device__ __forceinline__ void load16(const __nv_bfloat16* from, float (&v)[16]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 raw = *reinterpret_cast<const uint4*>(from + half * 8);
    const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 f = __bfloat1622float2(pairs[i]);
      v[half * 8 + i * 2] = f.x, v[half * 8 + i * 2 + 1] = f.y;
    }
  }
}

// The clamped product of gates and ups in place of the gates, rounded as the chain of ops does.
__device__ __forceinline__ void activate16(float (&gate)[16], const float (&up)[16], float limit) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float g = fminf(gate[i], limit), u = fminf(fmaxf(up[i], -limit), limit);
    gate[i] = __bfloat162float(__float2bfloat16(__fdividef(g, 1.f + __expf(-g)) * u));
  }
}

// Packs the codes of v into 16 bytes and gives the scale of the group. All eight threads of a group must call it together.
__device__ __forceinline__ float encode16(float (&v)[16], uint4& packed) {
  float peak = 0.f;
#pragma unroll
  for (int i = 0; i < 16; ++i) peak = fmaxf(peak, fabsf(v[i]));
#pragma unroll
  for (int lane = 1; lane < 8; lane *= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffu << (threadIdx.x % 32 / 8 * 8), peak, lane));
  const float scale = __fdiv_rn(fmaxf(peak, 1e-10f), 448.f), inverse = __fdiv_rn(1.f, scale);
#pragma unroll
  for (int i = 0; i < 16; ++i) {  // a true division: an exact residual mends the product
    const float estimate = v[i] * inverse;
    v[i] = __fmaf_rn(__fmaf_rn(-estimate, scale, v[i]), inverse, estimate);
  }
  uint32_t* words = reinterpret_cast<uint32_t*>(&packed);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = static_cast<uint32_t>(e4m3x2(v[i * 4], v[i * 4 + 1])) | (static_cast<uint32_t>(e4m3x2(v[i * 4 + 2], v[i * 4 + 3])) << 16);
  }
  return scale;
}

// A token's row, by one block: its codes to each of its rows in `codes`, a group's scale to where `scale_of(row, group)` is. `position`: of the token's choices,
// -1 where there is none. 16 channels a thread.
template <typename ScaleOf>
__device__ __forceinline__ void spread_token(const __nv_bfloat16* x, const int* position, int choices, int width, uint8_t* codes, ScaleOf scale_of) {
  for (int channel = threadIdx.x * 16; channel < width; channel += blockDim.x * 16) {
    float v[16];
    uint4 packed;
    load16(x + channel, v);
    const float scale = encode16(v, packed);
    for (int choice = 0; choice < choices; ++choice) {
      const int64_t row = position[choice];
      if (row < 0) continue;
      *reinterpret_cast<uint4*>(codes + row * width + channel) = packed;
      if (channel % 128 == 0) *scale_of(row, channel / 128) = scale;
    }
  }
}
