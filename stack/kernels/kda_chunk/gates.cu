// Decays and betas of KDA prefill: g = running sum, inside each chunk of 64 tokens, of lower_bound * sigmoid(exp(A_log) (f + dt_bias)) / ln 2; beta = sigmoid(b).
// One block of 64 threads a (chunk, head); a thread owns two neighbouring channels, then one token's beta.
#include <cuda_bf16.h>
#include <cstdint>

extern "C" __global__ void __launch_bounds__(64) kda_gates(const __nv_bfloat16* f, int64_t f_row, int64_t f_head, const __nv_bfloat16* b, int64_t b_row,
                                                           const float* a_log, const float* dt_bias, float* g, float* beta, const int64_t* indices,
                                                           const int64_t* starts, int heads, float lower_bound) {
  constexpr int kD = 128, kChunk = 64, kAhead = 16;
  const int head = blockIdx.y, d = threadIdx.x * 2;
  const int64_t request = indices[blockIdx.x * 2LL], first = starts[request] + indices[blockIdx.x * 2LL + 1] * kChunk;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kChunk), starts[request + 1] - first));
  if (threadIdx.x < rows) {
    const float x = __bfloat162float(b[(first + threadIdx.x) * b_row + head]);
    beta[(first + threadIdx.x) * heads + head] = 1.f / (1.f + expf(-x));
  }
  const float pace = expf(a_log[head]), scale = lower_bound * 1.4426950408889634f;
  const float2 bias = *reinterpret_cast<const float2*>(dt_bias + head * kD + d);
  const __nv_bfloat16* from = f + first * f_row + head * f_head + d;
  float2* to = reinterpret_cast<float2*>(g + (first * heads + head) * kD + d);
  float2 total = make_float2(0.f, 0.f);
  for (int base = 0; base < rows; base += kAhead) {
    __nv_bfloat162 raw[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (base + i < rows) raw[i] = *reinterpret_cast<const __nv_bfloat162*>(from + (base + i) * f_row);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= rows) break;
      const float2 x = __bfloat1622float2(raw[i]);
      total.x += __fdividef(scale, 1.f + __expf(-pace * (x.x + bias.x)));
      total.y += __fdividef(scale, 1.f + __expf(-pace * (x.y + bias.y)));
      to[static_cast<int64_t>(base + i) * heads * (kD / 2)] = total;
    }
  }
}
