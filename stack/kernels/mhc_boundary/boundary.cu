// The whole boundary between two sub-layers in one launch that reads and writes the residual streams in device memory once.
//
// Three kinds of blocks. A mixing block takes 32 tokens and 256 of their channels in all four streams: it writes the sub-layer's output back and adds its
// share of the coefficients' product, on the tensor cores: 16 tokens are the rows of the instruction, a thread's eight neighbouring channels fill its
// fragment (their order inside a product is free), and `fn` comes as one or two BF16 terms. A finishing block collapses and normalises two tokens, or
// balances the mixing matrices of 64. Tokens are cut into slabs small enough for their streams to be still in the L2 cache when a slab is finished.
// A finishing block waits for its slab's counter; blocks start in the order of their numbers, so whatever it waits for has already started.
#include <cuda_bf16.h>
#include <cstdint>

#include "../bf16.cuh"
#include "../hopper.cuh"

namespace {

constexpr int kStreams = 4, kThreads = 256, kWarps = 8, kRows = 24, kPadded = 25;
constexpr int kMixTokens = 32, kMixChannels = 256, kEndTokens = 8, kBalanceTokens = 64, kMaxSplits = 16;

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

struct Mix {
  float partial[kWarps][kMixTokens][kPadded];  // coefficients' sums and, last, the sum of squares
  float gains[kMixTokens][20];                 // post, then comb as [to][from]
};

}  // namespace

struct BoundaryArguments {
  const __nv_bfloat16* y;  // null: no write-back
  __nv_bfloat16* streams;
  const float *post, *comb;
  const __nv_bfloat16* fn;  // [terms][24][4 * channels]
  const float *base, *scale;
  const void* norm_weight;
  __nv_bfloat16* x;
  float *next_post, *next_comb, *sums;  // sums: [tokens][splits][25]
  int* finished;                        // a counter a slab, zero before and after
  int64_t y_row, streams_row;
  int tokens, channels, terms, iters, weight_bf16, slab, splits;
  float hc_eps, norm_eps;
  uint8_t* codes;  // of x, row-major, and its scales, MN-major: only where it is quantised too
  float* code_scales;
  int64_t scale_group;
};

namespace {

// What a stream holds after the write-back, less the streams still to be added. A compiler may contract a sum of products in either of two ways, so each step is
// spelled out: the fused boundary and the write-back alone give the same bits.
__device__ __forceinline__ float plus(float sum, float gain, float x) { return __fmaf_rn(gain, x, sum); }

// Write-back and partial product of 32 tokens x 256 channels; warp w has 32 of the channels, lane (g, t) tokens g + 8 i and channels 8 t ..
__device__ __forceinline__ void mix(const BoundaryArguments& a, Mix& s, int first_token, int split) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int channel = split * kMixChannels + warp * 32 + t * 8;
  const bool writes = a.y != nullptr, in_width = channel < a.channels;
  uint4 packed[4][kStreams], y_raw[4];
  float square[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int64_t row = first_token + g + 8 * r;
    const bool inside = row < a.tokens && in_width;
#pragma unroll
    for (int n = 0; n < kStreams; ++n)
      packed[r][n] = inside ? __ldcs(reinterpret_cast<const uint4*>(a.streams + row * a.streams_row + n * a.channels + channel)) : make_uint4(0, 0, 0, 0);
      y_raw[r] = inside && writes ? __ldcs(reinterpret_cast<const uint4*>(a.y + row * a.y_row + channel)) : make_uint4(0, 0, 0, 0);
  }
  if (writes) {
    for (int i = threadIdx.x; i < kMixTokens * 20; i += kThreads) {
      const int token = i / 20, at = i % 20;
      const int64_t row = first_token + token;
      const bool inside = row < a.tokens;
      if (at < 4) s.gains[token][at] = inside ? a.post[row * 4 + at] : 0.f;
      else s.gains[token][4 + (at - 4) % 4 * 4 + (at - 4) / 4] = inside ? a.comb[row * 16 + at - 4] : 0.f;
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int token = g + 8 * r;
    const int64_t row = first_token + token;
    const bool inside = row < a.tokens && in_width;
    if (writes) {
      float y[8], x[kStreams][8];
      unpack(y_raw[r], y);
#pragma unroll
      for (int n = 0; n < kStreams; ++n) unpack(packed[r][n], x[n]);
#pragma unroll
      for (int to = 0; to < kStreams; ++to) {
        const float gain = s.gains[token][to];
        const float4 from = *reinterpret_cast<const float4*>(&s.gains[token][4 + to * 4]);
        float mixed[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) mixed[i] = plus(plus(plus(plus(__fmul_rn(gain, y[i]), from.x, x[0][i]), from.y, x[1][i]), from.z, x[2][i]), from.w, x[3][i]);
        packed[r][to] = pack(mixed);
        if (inside) *reinterpret_cast<uint4*>(a.streams + row * a.streams_row + to * a.channels + channel) = packed[r][to];
      }
    }
    square[r] = 0.f;
#pragma unroll
    for (int n = 0; n < kStreams; ++n) {
      float x[8];
      unpack(packed[r][n], x);
#pragma unroll
      for (int i = 0; i < 8; ++i) square[r] += x[i] * x[i];
    }
  }
  float sums[2][3][4] = {};
  for (int term = 0; term < a.terms; ++term) {
    const __nv_bfloat16* fn = a.fn + (static_cast<int64_t>(term) * kRows + g) * kStreams * a.channels + channel;
#pragma unroll
    for (int n = 0; n < kStreams; ++n)
#pragma unroll
      for (int block = 0; block < 3; ++block) {
        const uint4 b = in_width ? *reinterpret_cast<const uint4*>(fn + (static_cast<int64_t>(block) * 8 * kStreams + n) * a.channels) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma_bf16(sums[m][block], {packed[2 * m][n].x, packed[2 * m + 1][n].x, packed[2 * m][n].y, packed[2 * m + 1][n].y}, b.x, b.y);
          mma_bf16(sums[m][block], {packed[2 * m][n].z, packed[2 * m + 1][n].z, packed[2 * m][n].w, packed[2 * m + 1][n].w}, b.z, b.w);
        }
      }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int block = 0; block < 3; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i) s.partial[warp][m * 16 + g + 8 * (i / 2)][block * 8 + t * 2 + i % 2] = sums[m][block][i];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    square[r] += __shfl_xor_sync(~0u, square[r], 1);
    square[r] += __shfl_xor_sync(~0u, square[r], 2);
    if (t == 0) s.partial[warp][g + 8 * r][kRows] = square[r];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kMixTokens * kPadded; i += kThreads) {
    const int token = i / kPadded;
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += (&s.partial[w][0][0])[i];
    if (first_token + token < a.tokens) a.sums[(static_cast<int64_t>(first_token + token) * a.splits + split) * kPadded + i % kPadded] = total;
  }
}

// A coefficient's sum over the splits. Sums and streams were written by other blocks: they are read past the L1 cache.
__device__ __forceinline__ float summed(const BoundaryArguments& a, int64_t row, int at) {
  float part[kMaxSplits], total = 0.f;
#pragma unroll
  for (int i = 0; i < kMaxSplits; ++i) part[i] = i < a.splits ? __ldcg(a.sums + (row * a.splits + i) * kPadded + at) : 0.f;
#pragma unroll
  for (int i = 0; i < kMaxSplits; ++i) total += part[i];
  return total;
}

__device__ __forceinline__ float root_of(const BoundaryArguments& a, float square) {
  return sqrtf(square / static_cast<float>(kStreams * a.channels) + a.norm_eps);
}

// E4M3 codes and the scale of 128 channels of the rounded row, eight of them in each of 16 neighbouring lanes. A true division: an exact residual mends
// the product.
__device__ __forceinline__ void quantize(const BoundaryArguments& a, const uint4& rounded, int64_t row, int channel) {
  const unsigned lanes = 0xffffu << (threadIdx.x % 32 / 16 * 16);
  float x[8], peak = 0.f;
  unpack(rounded, x);
#pragma unroll
  for (int i = 0; i < 8; ++i) peak = fmaxf(peak, fabsf(x[i]));
#pragma unroll
  for (int step = 1; step < 16; step *= 2) peak = fmaxf(peak, __shfl_xor_sync(lanes, peak, step));
  const float scale = __fdiv_rn(fmaxf(peak, 1e-10f), 448.f), inverse = __fdiv_rn(1.f, scale);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float estimate = x[i] * inverse;
    x[i] = __fmaf_rn(__fmaf_rn(-estimate, scale, x[i]), inverse, estimate);
  }
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    words[i] = static_cast<uint32_t>(e4m3x2(x[i * 4], x[i * 4 + 1])) | (static_cast<uint32_t>(e4m3x2(x[i * 4 + 2], x[i * 4 + 3])) << 16);
  *reinterpret_cast<uint2*>(a.codes + row * a.channels + channel) = make_uint2(words[0], words[1]);
  if (channel % 128 == 0) a.code_scales[channel / 128 * a.scale_group + row] = scale;
}

// Collapse and norm of two tokens, four warps each; every load of a lane is in flight before the first is used.
template <bool QUANTIZES>
__device__ __forceinline__ void finish(const BoundaryArguments& a, float (&squares)[kWarps], int64_t first_row) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = threadIdx.x % 128;
  const int64_t row = first_row + warp / 4;
  const bool inside = row < a.tokens;
  constexpr int kSteps = 4;
  uint4 raw[kSteps][kStreams];
  if (inside) {
    const __nv_bfloat16* from = a.streams + row * a.streams_row;
#pragma unroll
    for (int c = 0; c < kSteps; ++c) {
      const int channel = (c * 128 + part) * 8;
#pragma unroll
      for (int n = 0; n < kStreams; ++n)
        raw[c][n] = channel < a.channels ? __ldcg(reinterpret_cast<const uint4*>(from + n * a.channels + channel)) : make_uint4(0, 0, 0, 0);
    }
  }
  uint4 collapsed[kSteps];
  float square = 0.f;
  if (inside) {
    const float total = lane < kStreams + 1 ? summed(a, row, lane < kStreams ? lane : kRows) : 0.f;
    const float root = root_of(a, __shfl_sync(~0u, total, kStreams));
    const float open = lane < kStreams ? sigmoid(total / root * a.scale[0] + a.base[lane]) + a.hc_eps : 0.f;
    float pre[kStreams];
#pragma unroll
    for (int n = 0; n < kStreams; ++n) pre[n] = __shfl_sync(~0u, open, n);
#pragma unroll
    for (int c = 0; c < kSteps; ++c) {
      float sum[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f}, x[8];
#pragma unroll
      for (int n = 0; n < kStreams; ++n) {
        unpack(raw[c][n], x);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] += pre[n] * x[i];
      }
      collapsed[c] = pack(sum);
      unpack(collapsed[c], x);
#pragma unroll
      for (int i = 0; i < 8; ++i) square += x[i] * x[i];
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(~0u, square, step);
  if (lane == 0) squares[warp] = square;
  __syncthreads();
  if (!inside) return;
  square = 0.f;
#pragma unroll
  for (int i = 0; i < 4; ++i) square += squares[warp / 4 * 4 + i];
  const float inverse = 1.f / sqrtf(square / static_cast<float>(a.channels) + a.norm_eps);
#pragma unroll
  for (int c = 0; c < kSteps; ++c) {
    const int channel = (c * 128 + part) * 8;
    if (channel >= a.channels) continue;
    float x[8], weight[8];
    unpack(collapsed[c], x);
    if (a.weight_bf16) {
      unpack(*reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(a.norm_weight) + channel), weight);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) weight[i] = static_cast<const float*>(a.norm_weight)[channel + i];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = weight[i] * x[i] * inverse;
    const uint4 rounded = pack(x);
    __stcs(reinterpret_cast<uint4*>(a.x + row * a.channels + channel), rounded);
    if (QUANTIZES) quantize(a, rounded, row, channel);
  }
}

// What the next boundary needs of 64 tokens: `post`, and the mixing matrix after its Sinkhorn passes; a lane holds one row of a matrix.
__device__ __forceinline__ void balance(const BoundaryArguments& a, int64_t first_row) {
  const int lane = threadIdx.x % 4;
  const int64_t row = first_row + threadIdx.x / 4;
  const bool inside = row < a.tokens;
  const unsigned quad = 0xfu << (threadIdx.x % 32 / 4 * 4);
  if (!inside) return;
  const float root = root_of(a, summed(a, row, kRows));
  a.next_post[row * 4 + lane] = 2.f * sigmoid(summed(a, row, 4 + lane) / root * a.scale[1] + a.base[4 + lane]);
  float c[4], peak = -INFINITY, sum = 0.f;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    c[j] = summed(a, row, 8 + lane * 4 + j) / root * a.scale[2] + a.base[8 + lane * 4 + j];
    peak = fmaxf(peak, c[j]);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) c[j] = expf(c[j] - peak), sum += c[j];
#pragma unroll
  for (int j = 0; j < 4; ++j) c[j] = c[j] / sum + a.hc_eps;
  auto columns = [&]() {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float down = c[j] + __shfl_xor_sync(quad, c[j], 1);
      down += __shfl_xor_sync(quad, down, 2);
      c[j] = __fdividef(c[j], down + a.hc_eps);
    }
  };
  columns();
  for (int pass = 1; pass < a.iters; ++pass) {
    const float across = __fdividef(1.f, c[0] + c[1] + c[2] + c[3] + a.hc_eps);
#pragma unroll
    for (int j = 0; j < 4; ++j) c[j] *= across;
    columns();
  }
  *reinterpret_cast<float4*>(a.next_comb + row * 16 + lane * 4) = make_float4(c[0], c[1], c[2], c[3]);
}

template <bool QUANTIZES>
__device__ __forceinline__ void boundary(const BoundaryArguments& a) {
  __shared__ __align__(16) Mix shared;
  __shared__ float squares[2][kWarps];  // alternating, so that one barrier a pair of tokens is enough
  // order of work: mix(0), mix(1), end(0), mix(2), end(1), .. end(last)
  const int slabs = (a.tokens + a.slab - 1) / a.slab;
  const int mixes = a.slab / kMixTokens * a.splits, ends = a.slab / kEndTokens + a.slab / kBalanceTokens;  // of a full slab
  const int last_tokens = a.tokens - (slabs - 1) * a.slab;
  const int last_mixes = (last_tokens + kMixTokens - 1) / kMixTokens * a.splits, last_finishes = (last_tokens + kEndTokens - 1) / kEndTokens;
  const int last_ends = last_finishes + (last_tokens + kBalanceTokens - 1) / kBalanceTokens;
  int at = static_cast<int>(blockIdx.x), slab, index;
  bool is_mix;
  if (slabs == 1 || at < mixes) {
    is_mix = at < (slabs == 1 ? last_mixes : mixes);
    slab = 0, index = is_mix ? at : at - last_mixes;
  } else {
    at -= mixes;
    const int middle = (slabs - 2) * (mixes + ends);  // pairs mix(s + 1), end(s) with both full
    if (at < middle) {
      slab = at / (mixes + ends), index = at % (mixes + ends);
      is_mix = index < mixes;
      if (is_mix) ++slab;
      else index -= mixes;
    } else {
      at -= middle;
      is_mix = at < last_mixes;
      if (is_mix) slab = slabs - 1, index = at;
      else if (at < last_mixes + ends) slab = slabs - 2, index = at - last_mixes;
      else slab = slabs - 1, index = at - last_mixes - ends;
    }
  }
  const int needed = slab == slabs - 1 ? last_mixes : mixes;
  if (is_mix) {
    mix(a, shared, slab * a.slab + index / a.splits * kMixTokens, index % a.splits);
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(a.finished + slab, 1);
    }
    return;
  }
  if (threadIdx.x == 0) {
    int done;
    do done = load_acquire(a.finished + slab);
    while (done < needed);
  }
  __syncthreads();
  const int64_t first = static_cast<int64_t>(slab) * a.slab;
  const int finishes = slab == slabs - 1 ? last_finishes : a.slab / kEndTokens;
  if (index < finishes) {
#pragma unroll 1
    for (int pair = 0; pair < kEndTokens; pair += 2) finish<QUANTIZES>(a, squares[pair / 2 % 2], first + index * kEndTokens + pair);
  } else {
    balance(a, first + (index - finishes) * kBalanceTokens);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const int all = needed + (slab == slabs - 1 ? last_ends : ends);
    if (atomicAdd(a.finished + slab, 1) == all - 1) a.finished[slab] = 0;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 2) mhc_boundary(const __grid_constant__ BoundaryArguments a) { boundary<false>(a); }

// The same, and the row that leaves it quantised; channels are a multiple of 128.
extern "C" __global__ void __launch_bounds__(kThreads, 2) mhc_boundary_quant(const __grid_constant__ BoundaryArguments a) { boundary<true>(a); }

// X'[j] = post[j] y + sum_i comb[i, j] X[i] alone, in place; with `mean` also the mean of the streams, in FP32, rounded once. One block a token.
extern "C" __global__ void __launch_bounds__(256) mhc_write_back(const __nv_bfloat16* y, int64_t y_row, __nv_bfloat16* streams, int64_t streams_row,
                                                                 const float* post, const float* comb, __nv_bfloat16* mean, int channels, int keep) {
  const int64_t row = blockIdx.x;
  float gain[kStreams], mix[kStreams][kStreams];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    gain[i] = y != nullptr ? post[row * 4 + i] : 0.f;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) mix[i][j] = y != nullptr ? comb[row * 16 + i * 4 + j] : (i == j ? 1.f : 0.f);
  }
  for (int channel = threadIdx.x * 8; channel < channels; channel += 256 * 8) {
    float out[kStreams][8], x[8], average[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
    if (y != nullptr) unpack(*reinterpret_cast<const uint4*>(y + row * y_row + channel), x);
#pragma unroll
    for (int j = 0; j < kStreams; ++j)
#pragma unroll
      for (int i = 0; i < 8; ++i) out[j][i] = y != nullptr ? __fmul_rn(gain[j], x[i]) : 0.f;
#pragma unroll
    for (int n = 0; n < kStreams; ++n) {
      unpack(*reinterpret_cast<const uint4*>(streams + row * streams_row + n * channels + channel), x);
#pragma unroll
      for (int j = 0; j < kStreams; ++j)
#pragma unroll
        for (int i = 0; i < 8; ++i) out[j][i] = plus(out[j][i], mix[n][j], x[i]);
    }
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const uint4 packed = pack(out[j]);
      if (keep) *reinterpret_cast<uint4*>(streams + row * streams_row + j * channels + channel) = packed;
      unpack(packed, x);
#pragma unroll
      for (int i = 0; i < 8; ++i) average[i] += x[i];
    }
    if (mean != nullptr) {
#pragma unroll
      for (int i = 0; i < 8; ++i) average[i] *= 1.f / kStreams;
      *reinterpret_cast<uint4*>(mean + row * channels + channel) = pack(average);
    }
  }
}
