// Where each (token, choice) goes: rows sorted by expert, each expert's rows starting at a multiple of `align`. And the quantised copy to there, and
// the weighted sum back, with or without a term added. The order of rows inside an expert is not fixed; no result depends on it, since rows never meet in a sum.
#include <cuda_bf16.h>
#include <cstdint>

#include "../hopper.cuh"
#include "encode.cuh"

namespace {
constexpr int kThreads = 1024, kMaxExperts = 1024;
}

// One block. position[i]: row of entry i, or -1. layout[row]: expert of the row, -1 behind the last expert. source[row]: entry, -1 for padding.
extern "C" __global__ void __launch_bounds__(kThreads) moe_route(const int* ids, int entries, int experts, int align, int max_rows, int* position,
                                                                 int* layout, int* source) {
  __shared__ int count[kMaxExperts];
  __shared__ int begin[kMaxExperts + 1];
  __shared__ int warp_total[32];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  if (thread < kMaxExperts) count[thread] = 0;
  __syncthreads();
  for (int i = thread; i < entries; i += kThreads) {
    const int id = ids[i];
    if (id >= 0) atomicAdd(&count[id], 1);
  }
  __syncthreads();
  const int rows = thread < experts ? (count[thread] + align - 1) / align * align : 0;
  int scan = rows;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, scan, step);
    if (lane >= step) scan += other;
  }
  if (lane == 31) warp_total[warp] = scan;
  __syncthreads();
  int before = scan - rows;
  for (int i = 0; i < warp; ++i) before += warp_total[i];
  if (thread < experts) begin[thread] = before;
  if (thread == kThreads - 1) begin[kMaxExperts] = before + rows;
  __syncthreads();
  const int used = begin[kMaxExperts];
  for (int expert = warp; expert < experts; expert += 32) {
    const int first = begin[expert], real = first + count[expert], last = first + (count[expert] + align - 1) / align * align;
    for (int row = first + lane; row < last; row += 32) {
      layout[row] = expert;
      if (row >= real) source[row] = -1;
    }
  }
  for (int row = used + thread; row < max_rows; row += kThreads) layout[row] = -1, source[row] = -1;
  __syncthreads();
  if (thread < kMaxExperts) count[thread] = 0;
  __syncthreads();
  for (int i = thread; i < entries; i += kThreads) {
    const int id = ids[i];
    const int row = id >= 0 ? begin[id] + atomicAdd(&count[id], 1) : -1;
    position[i] = row;
    if (row >= 0) source[row] = i;
  }
}

// One block a token: codes and scales of its row, to each of its places. Scales are MN-major with `scale_group` rows a group.
extern "C" __global__ void moe_scatter(const __nv_bfloat16* x, int64_t x_row, const int* position, int choices, int width, uint8_t* codes, float* scales,
                                       int64_t scale_group) {
  spread_token(x + blockIdx.x * x_row, position + static_cast<int64_t>(blockIdx.x) * choices, choices, width, codes,
               [=](int64_t row, int group) { return scales + group * scale_group + row; });
}

// y[t] = sum over choices of weights[t, k] * rows[position[t, k]], FP32 over k in order. One block a token, 8 channels a thread. With ADDS that sum is
// rounded, then added[t] is added and the result rounded again: what a separate addition would give, to the bit.
template <bool ADDS>
__device__ __forceinline__ void combine(const __nv_bfloat16* rows, const int* position, const float* weights, int choices, int width, __nv_bfloat16* y,
                                        const __nv_bfloat16* added, int64_t added_row) {
  const int64_t token = blockIdx.x;
  for (int channel = threadIdx.x * 8; channel < width; channel += blockDim.x * 8) {
    float sum[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
    for (int choice = 0; choice < choices; ++choice) {
      const int64_t row = position[token * choices + choice];
      if (row < 0) continue;
      const float weight = weights[token * choices + choice];
      const uint4 raw = *reinterpret_cast<const uint4*>(rows + row * width + channel);
      const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 f = __bfloat1622float2(pairs[i]);
        sum[i * 2] += weight * f.x, sum[i * 2 + 1] += weight * f.y;
      }
    }
    uint4 packed;
    __nv_bfloat162* out = reinterpret_cast<__nv_bfloat162*>(&packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = __floats2bfloat162_rn(sum[i * 2], sum[i * 2 + 1]);
    if (ADDS) {
      const uint4 raw = *reinterpret_cast<const uint4*>(added + token * added_row + channel);
      const __nv_bfloat162* terms = reinterpret_cast<const __nv_bfloat162*>(&raw);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 routed = __bfloat1622float2(out[i]), term = __bfloat1622float2(terms[i]);
        out[i] = __floats2bfloat162_rn(routed.x + term.x, routed.y + term.y);
      }
    }
    *reinterpret_cast<uint4*>(y + token * width + channel) = packed;
  }
}

extern "C" __global__ void moe_combine(const __nv_bfloat16* rows, const int* position, const float* weights, int choices, int width, __nv_bfloat16* y) {
  combine<false>(rows, position, weights, choices, width, y, nullptr, 0);
}

extern "C" __global__ void moe_combine_added(const __nv_bfloat16* rows, const int* position, const float* weights, int choices, int width, __nv_bfloat16* y,
                                             const __nv_bfloat16* added, int64_t added_row) {
  combine<true>(rows, position, weights, choices, width, y, added, added_row);
}
