// Rows of the indexer, one warp a row of 128 channels, lane l holding channels 4l .. 4l + 3: queries quantised for FP8 scores, pools closed,
// tail rings refreshed. The rotation and the power-of-two scale are those of `index_rows.py`, to the bit.
#include <cuda_bf16.h>
#include <cstdint>

#include "hopper.cuh"

namespace {

constexpr int kD = 128, kWarps = 4, kMaxPool = 8;

struct Four { float x[4]; };

__device__ __forceinline__ Four load4(const __nv_bfloat16* at) {
  const uint2 raw = *reinterpret_cast<const uint2*>(at);
  const float2 a = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.x)), b = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.y));
  return Four{{a.x, a.y, b.x, b.y}};
}

__device__ __forceinline__ void store4(__nv_bfloat16* at, const Four& v) {
  __nv_bfloat162 a = __floats2bfloat162_rn(v.x[0], v.x[1]), b = __floats2bfloat162_rn(v.x[2], v.x[3]);
  *reinterpret_cast<uint2*>(at) = make_uint2(*reinterpret_cast<uint32_t*>(&a), *reinterpret_cast<uint32_t*>(&b));
}

// A parameter vector that is FP32 or BF16.
__device__ __forceinline__ Four parameter(const void* of, int is_bf16, int at) {
  if (is_bf16) return load4(static_cast<const __nv_bfloat16*>(of) + at);
  const float4 v = *reinterpret_cast<const float4*>(static_cast<const float*>(of) + at);
  return Four{{v.x, v.y, v.z, v.w}};
}

__device__ __forceinline__ float bf16_rounded(float x) { return __bfloat162float(__float2bfloat16(x)); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}

__device__ __forceinline__ Four rotated(Four v, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) v.x[i] = bf16_rounded(v.x[i]);
  v = Four{{v.x[0] + v.x[1], v.x[0] - v.x[1], v.x[2] + v.x[3], v.x[2] - v.x[3]}};
  v = Four{{v.x[0] + v.x[2], v.x[1] + v.x[3], v.x[0] - v.x[2], v.x[1] - v.x[3]}};
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const bool upper = lane & step;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = __shfl_xor_sync(~0u, v.x[i], step);
      v.x[i] = upper ? other - v.x[i] : v.x[i] + other;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) v.x[i] = bf16_rounded(__fmul_rn(v.x[i], 0.08838834764831845f));
  return v;
}

// E4M3 codes of a rotated row, and its scale 2^ceil(log2(max(max|x|, 1e-4) / 448)).
__device__ __forceinline__ uint32_t coded(const Four& v, float& scale) {
  float peak = fmaxf(fmaxf(fabsf(v.x[0]), fabsf(v.x[1])), fmaxf(fabsf(v.x[2]), fabsf(v.x[3])));
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, lane));
  const uint32_t bits = __float_as_uint(__fdiv_rn(fmaxf(peak, 1e-4f), 448.f));
  const int exponent = static_cast<int>(bits >> 23) + ((bits & 0x7fffffu) != 0);
  scale = __uint_as_float(static_cast<uint32_t>(exponent) << 23);
  const float inverse = __uint_as_float(static_cast<uint32_t>(254 - exponent) << 23);
  uint16_t lo, hi;
  lo = e4m3x2(v.x[0] * inverse, v.x[1] * inverse);
  hi = e4m3x2(v.x[2] * inverse, v.x[3] * inverse);
  return static_cast<uint32_t>(lo) | (static_cast<uint32_t>(hi) << 16);
}

__device__ __forceinline__ Four layer_normed(const __nv_bfloat16* at, const void* weight, const void* bias, int is_bf16, int lane) {
  Four v = load4(at + lane * 4);
  const float mean = warp_sum(v.x[0] + v.x[1] + v.x[2] + v.x[3]) / kD;
  float square = 0.f;
#pragma unroll
  for (int i = 0; i < 4; ++i) v.x[i] -= mean, square += v.x[i] * v.x[i];
  const float root = sqrtf(warp_sum(square) / kD + 1e-6f);
  const Four w = parameter(weight, is_bf16, lane * 4), b = parameter(bias, is_bf16, lane * 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) v.x[i] = bf16_rounded(v.x[i] / root * w.x[i] + b.x[i]);
  return v;
}

}  // namespace

// Codes of query head rows; their scales and D^-0.5 go into the head weights.
extern "C" __global__ void __launch_bounds__(kWarps * 32) index_query(const __nv_bfloat16* q, int64_t q_row, int64_t q_head, const float* w, int64_t w_row,
                                                                      uint8_t* codes, float* w_out, int64_t head_rows, int heads) {
  const int64_t head_row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (head_row >= head_rows) return;
  const int lane = threadIdx.x % 32;
  const int64_t row = head_row / heads, head = head_row % heads;
  float scale;
  const uint32_t code = coded(rotated(load4(q + row * q_row + head * q_head + lane * 4), lane), scale);
  reinterpret_cast<uint32_t*>(codes + head_row * kD)[lane] = code;
  if (lane == 0) w_out[head_row] = w[row * w_row + head] * (scale * 0.08838834764831845f);
}

struct WriteArguments {
  const __nv_bfloat16 *ik, *ig;
  const void *norm_weight, *norm_bias, *ape;
  __nv_bfloat16* tail;
  void* codes;
  float* scales;
  const int *page_table, *slot, *request, *position, *start;
  const int64_t* write;
  int64_t ik_row, ig_row, tail_slot, tail_entry, codes_page, codes_row, scales_page, table_row;
  int rows, ring, kpool, pools_a_page, parameters_bf16, ape_bf16;
};

// Pools that these rows close. Runs before the rings move, so earlier tokens of an open pool are still there.
extern "C" __global__ void __launch_bounds__(kWarps * 32) index_pool(const __grid_constant__ WriteArguments a) {
  const int row = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= a.rows || a.write[row] == 0) return;
  const int position = a.position[row];
  if ((position + 1) % a.kpool) return;
  const int request = a.request[row], slot = a.slot[request], first = a.start[request];
  Four key[kMaxPool], gate[kMaxPool];
#pragma unroll
  for (int s = 0; s < kMaxPool; ++s) {
    if (s >= a.kpool) break;
    const int back = a.kpool - 1 - s;
    if (row - back >= first) {
      key[s] = layer_normed(a.ik + (row - back) * a.ik_row, a.norm_weight, a.norm_bias, a.parameters_bf16, lane);
      gate[s] = load4(a.ig + (row - back) * a.ig_row + lane * 4);
    } else {
      const __nv_bfloat16* entry = a.tail + slot * a.tail_slot + ((position - back) % a.ring) * a.tail_entry + lane * 4;
      key[s] = load4(entry);
      gate[s] = load4(entry + kD);
    }
    const Four ape = parameter(a.ape, a.ape_bf16, s * kD + lane * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) gate[s].x[i] += ape.x[i];
  }
  Four pooled;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float peak = -INFINITY, total = 0.f, mixed = 0.f;
#pragma unroll
    for (int s = 0; s < kMaxPool; ++s)
      if (s < a.kpool) peak = fmaxf(peak, gate[s].x[i]);
#pragma unroll
    for (int s = 0; s < kMaxPool; ++s)
      if (s < a.kpool) {
        const float e = expf(gate[s].x[i] - peak);
        total += e, mixed += e * key[s].x[i];
      }
    pooled.x[i] = mixed / total;
  }
  const int pool = position / a.kpool;
  const int64_t page = a.page_table[slot * a.table_row + pool / a.pools_a_page], at = pool % a.pools_a_page;
  if (a.scales == nullptr) {
    store4(static_cast<__nv_bfloat16*>(a.codes) + page * a.codes_page + at * a.codes_row + lane * 4, pooled);
    return;
  }
  float scale;
  const uint32_t code = coded(rotated(pooled, lane), scale);
  reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(a.codes) + page * a.codes_page + at * a.codes_row)[lane] = code;
  if (lane == 0) a.scales[page * a.scales_page + at] = scale;
}

// The last `ring` rows of each request into its ring: earlier ones would be overwritten anyway, so no two rows share an entry.
extern "C" __global__ void __launch_bounds__(kWarps * 32) index_ring(const __grid_constant__ WriteArguments a) {
  const int row = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= a.rows || a.write[row] == 0) return;
  const int request = a.request[row];
  if (row + a.ring < a.start[request + 1]) return;
  __nv_bfloat16* entry = a.tail + a.slot[request] * a.tail_slot + (a.position[row] % a.ring) * a.tail_entry + lane * 4;
  store4(entry, layer_normed(a.ik + row * a.ik_row, a.norm_weight, a.norm_bias, a.parameters_bf16, lane));
  store4(entry + kD, load4(a.ig + row * a.ig_row + lane * 4));
}
