// A tile's share of a block that keeps the same channels of all four streams, and the same columns of `fn`, through all its tiles: its way to the chip, the
// write-back with the sums that its coefficients are made of, the collapse, and the balance of a mixing matrix. What passes between blocks, and when, is for
// the kernels to say.
//
// A warp has 32 channels, lane (g, t) token g and the eight channels from 8 t on: what a thread mixes and finishes is its own.
#pragma once
#include <cuda_bf16.h>
#include <cstdint>

#include "../hopper.cuh"
#include "balance.cuh"

#ifndef SKIP
#define SKIP 0
#endif
#ifndef PASSING
#define PASSING 0
#endif

namespace {

// All true, but where a time is taken without a part: results are wrong then.
constexpr bool kLoads = !(SKIP & 1), kStores = !(SKIP & 2), kMultiplies = !(SKIP & 4), kAwaits = !(SKIP & 24), kAsks = !(SKIP & 16), kBalances = !(SKIP & 32);
constexpr bool kPassing = PASSING;  // streams are written as what nobody will read soon
constexpr int kStreams = 4, kTokens = 8, kRows = 24;
constexpr int kValues = 36, kQuads = kValues / 3, kOpenQuads = 5;  // a token's sums: pre 4, products of streams 10, post 4, comb 16, two of nothing

// A block's tiles on the chip as threads copy them, each its own words to its own number, so that they come before they are needed without a barrier. `kLag`
// turns after its mixing a tile is collapsed. A warp's sums are `kPitch` apart.
template <int kSlice, int kAhead_, int kLag, int kGains_, int kPitch> struct Tiles {
  static constexpr bool kInRows = false;
  static constexpr int kThreads = kSlice, kAhead = kAhead_, kStages = kAhead + kLag, kGains = kGains_;
  uint4 x[kStages][kStreams][kThreads];
  uint4 y[kAhead][kThreads];

  __device__ __forceinline__ uint4& x_of(int turn, int n) { return x[turn % kStages][n][threadIdx.x]; }
  __device__ __forceinline__ const uint4& x_of(int turn, int n) const { return x[turn % kStages][n][threadIdx.x]; }
  __device__ __forceinline__ const uint4& y_of(int turn) const { return y[turn % kAhead][threadIdx.x]; }

  float partial[2][kThreads / 32][kPitch];
  float4 gains[kGains][kTokens][5];  // post, then comb as [from][to]
  float4 pre[2][kTokens];
  float inverse[2][kTokens];
};

struct alignas(16) Words { uint32_t of[4]; };  // eight channels

__device__ __forceinline__ float2 unpack2(uint32_t word) { return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)); }
__device__ __forceinline__ uint32_t pack2(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Functions of coefficients, right to about 2^-21: the exact ones' branches for the last bit and for rare arguments took a fifth of the whole kernel.
__device__ __forceinline__ float exponential(float x) { return fast_exp2(x * 1.44269504f); }
__device__ __forceinline__ float over(float x, float y) { return x * fast_reciprocal(y); }
__device__ __forceinline__ float sigmoid(float x) { return over(1.f, 1.f + exponential(-x)); }
__device__ __forceinline__ float inverse_root(float sum, int count, float eps) { return fast_rsqrt(over(sum, static_cast<float>(count)) + eps); }

}  // namespace

struct RingArguments {
  const __nv_bfloat16* y;  // null: no write-back
  __nv_bfloat16* streams;
  const float *post, *comb;
  const __nv_bfloat16* fn;  // [terms][24][4 * channels]
  const float *base, *scale;
  const void* norm_weight;
  __nv_bfloat16* x;
  float *next_post, *next_comb;
  uint4* ring;      // of each group; three values and their turn
  uint32_t* turns;  // the number of this launch's first turn, which no turn before had; blocks that have ended
  int64_t y_row, streams_row;
  int tokens, channels, iters, weight_bf16;
  float hc_eps, norm_eps;
};

namespace {

// A place in rows of BF16 in units of sixteen bytes: 32 bits reach 64 GB.
__device__ __forceinline__ uint32_t place_of(uint32_t row, int64_t row_length, int channel) {
  return row * (static_cast<uint32_t>(row_length) / 8) + static_cast<uint32_t>(channel) / 8;
}

// This thread's share of a tile, and of the gains of the group's next one.
template <class S> __device__ __forceinline__ void load(const RingArguments& a, S& s, int tile, int turn, int channel) {
  if (!kLoads) return;
  const int row = tile * kTokens + threadIdx.x % 32 / 4;
  const bool inside = row < a.tokens && channel < a.channels;
  const uint4 *streams = reinterpret_cast<const uint4*>(a.streams), *y = reinterpret_cast<const uint4*>(a.y);
  const uint32_t from = place_of(row, a.streams_row, channel), to = shared_address(&s.x[turn % S::kStages][0][threadIdx.x]);
#pragma unroll
  for (int n = 0; n < kStreams; ++n) copy16_near(to + n * S::kThreads * 16, streams + (from + n * (a.channels / 8)), inside);
  if (y != nullptr) copy16_near(shared_address(&s.y[turn % S::kAhead][threadIdx.x]), y + place_of(row, a.y_row, channel), inside);
}

template <class S> __device__ __forceinline__ void load_gains(const RingArguments& a, S& s, int tile, int turn, uint32_t thread) {
  if (a.y == nullptr || thread >= kTokens * 5) return;
  const int token = thread / 5, part = thread % 5;
  const int64_t row = static_cast<int64_t>(tile) * kTokens + token;
  copy16(shared_address(&s.gains[turn % S::kGains][token][part]), part == 0 ? a.post + row * 4 : a.comb + row * 16 + (part - 1) * 4, row < a.tokens);
}

// X'[j] = post[j] y + sum_i comb[i, j] X[i] for eight channels of one token, in place.
__device__ __forceinline__ void write_back(Words (&x)[kStreams], const Words& y, const float4 (&gains)[5]) {
  const float4 post = gains[0], c0 = gains[1], c1 = gains[2], c2 = gains[3], c3 = gains[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const float2 v = unpack2(y.of[p]), x0 = unpack2(x[0].of[p]), x1 = unpack2(x[1].of[p]), x2 = unpack2(x[2].of[p]), x3 = unpack2(x[3].of[p]);
#define MIXED(part) pack2(post.part * v.x + c0.part * x0.x + c1.part * x1.x + c2.part * x2.x + c3.part * x3.x, \
                          post.part * v.y + c0.part * x0.y + c1.part * x1.y + c2.part * x2.y + c3.part * x3.y)
    x[0].of[p] = MIXED(x), x[1].of[p] = MIXED(y), x[2].of[p] = MIXED(z), x[3].of[p] = MIXED(w);
#undef MIXED
  }
}

struct Fragments { Words of[kStreams][3]; };  // rows g, g + 8, g + 16 of `fn`, eight channels of each stream

__device__ __forceinline__ void load_fragments(Words (&fn)[3], const RingArguments& a, int term, int n, int channel, int g) {
#pragma unroll
  for (int block = 0; block < 3; ++block)
    fn[block] = channel < a.channels ? *reinterpret_cast<const Words*>(a.fn + ((static_cast<int64_t>(term) * kRows + block * 8 + g) * kStreams + n) * a.channels + channel)
                                     : Words{};
}

// Tokens are the columns of the instruction; their order of channels is free, so a thread's eight neighbouring ones serve as two steps of sixteen.
__device__ __forceinline__ void multiply(float (&high)[4], float (&low)[4], const Words (&fn)[3], const Words& x) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    mma_bf16(high, {fn[0].of[i], fn[1].of[i], fn[0].of[i + 1], fn[1].of[i + 1]}, x.of[i], x.of[i + 1]);
    mma_bf16(low, {fn[2].of[i], 0u, fn[2].of[i + 1], 0u}, x.of[i], x.of[i + 1]);
  }
}

// Two streams times a third: a token's products stand on the diagonals. A fragment of rows and one of columns are the same words.
__device__ __forceinline__ void square(float (&d)[4], const Words& upper, const Words& lower, const Words& x) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) mma_bf16(d, {upper.of[i], lower.of[i], upper.of[i + 1], lower.of[i + 1]}, x.of[i], x.of[i + 1]);
}

// Write-back of a tile and this warp's share of its sums.
template <int kTerms, class S> __device__ __forceinline__ void mix(const RingArguments& a, S& s, const Fragments& fn, int tile, int turn, int channel) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row = tile * kTokens + g;
  Words x[kStreams];
#pragma unroll
  for (int n = 0; n < kStreams; ++n) x[n] = *reinterpret_cast<const Words*>(&s.x_of(turn, n));
  if (a.y != nullptr) {
    write_back(x, *reinterpret_cast<const Words*>(&s.y_of(turn)), s.gains[turn % S::kGains][g]);
    uint4* to = reinterpret_cast<uint4*>(a.streams);
    const uint32_t at = place_of(row, a.streams_row, channel);
#pragma unroll
    for (int n = 0; n < kStreams; ++n) s.x_of(turn, n) = make_uint4(x[n].of[0], x[n].of[1], x[n].of[2], x[n].of[3]);
    if (!S::kInRows && kStores && row < a.tokens && channel < a.channels)
#pragma unroll
      for (int n = 0; n < kStreams; ++n) {
        const uint4 out = make_uint4(x[n].of[0], x[n].of[1], x[n].of[2], x[n].of[3]);
        if (kPassing) __stcs(to + (at + n * (a.channels / 8)), out);
        else to[at + n * (a.channels / 8)] = out;
      }
  }
  float high[4] = {}, low[4] = {}, d[5][4] = {};
  if (kMultiplies) {
    multiply(high, low, fn.of[0], x[0]);
    square(d[0], x[0], x[1], x[0]);
    multiply(high, low, fn.of[1], x[1]);
    square(d[1], x[2], x[3], x[0]);
    square(d[2], x[1], x[2], x[1]);
    multiply(high, low, fn.of[2], x[2]);
    square(d[3], x[3], x[1], x[3]);
    multiply(high, low, fn.of[3], x[3]);
    square(d[4], x[2], x[3], x[2]);
  }
  if constexpr (kTerms == 2) {
#pragma unroll
    for (int n = 0; n < kStreams; ++n) {
      Words rest[3];
      load_fragments(rest, a, 1, n, channel, g);
      multiply(high, low, rest, x[n]);
    }
  }
  float* sums = s.partial[turn % 2][warp];
  // the lane has coefficients g, g + 8 and g + 16 of tokens 2t and 2t + 1; all but `pre` stand ten behind
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float* of = sums + (2 * t + c) * kValues;
    of[g < 4 ? g : g + 10] = high[c];
    of[g + 18] = high[2 + c];
    of[g + 26] = low[c];
  }
  if (t != g / 2) return;
  float upper[5], lower[5];
#pragma unroll
  for (int i = 0; i < 5; ++i) upper[i] = g % 2 ? d[i][1] : d[i][0], lower[i] = g % 2 ? d[i][3] : d[i][2];
  float2* of = reinterpret_cast<float2*>(sums + g * kValues + 4);  // 00 11, 22 33, 01 02, 03 12, 13 23
  of[0] = make_float2(upper[0], upper[2]), of[1] = make_float2(upper[4], upper[3]), of[2] = make_float2(lower[0], upper[1]);
  of[3] = make_float2(lower[1], lower[2]), of[4] = make_float2(lower[3], lower[4]);
}

// What the next boundary needs of a token, one thread each: `post`, and the mixing matrix after its Sinkhorn passes. `sum`: post, comb, the sum of squares.
__device__ __forceinline__ void balance(const RingArguments& a, const float* sum, int64_t row) {
  if (!kBalances || row >= a.tokens) return;
  const float root = inverse_root(sum[24], kStreams * a.channels, a.norm_eps);
  const float shut = root * a.scale[1], pace = root * a.scale[2];
  *reinterpret_cast<float4*>(a.next_post + row * 4) = make_float4(2.f * sigmoid(sum[0] * shut + a.base[4]), 2.f * sigmoid(sum[1] * shut + a.base[5]),
                                                                  2.f * sigmoid(sum[2] * shut + a.base[6]), 2.f * sigmoid(sum[3] * shut + a.base[7]));
  float c[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float peak = -INFINITY, total = 0.f;
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = sum[4 + i * 4 + j] * pace + a.base[8 + i * 4 + j], peak = fmaxf(peak, c[i][j]);
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = exponential(c[i][j] - peak), total += c[i][j];
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = over(c[i][j], total) + a.hc_eps;
  }
  write_balanced(c, a.hc_eps, a.iters, a.next_comb + row * 16);
}

// Collapse and norm of an opened tile's eight channels of a thread.
template <class S> __device__ __forceinline__ void finish(const RingArguments& a, const S& s, const Words& gain, int tile, int turn, int channel) {
  const int g = threadIdx.x % 32 / 4;
  const float4 pre = s.pre[turn % 2][g];
  const float inverse = s.inverse[turn % 2][g];
  Words x[kStreams];
#pragma unroll
  for (int n = 0; n < kStreams; ++n) x[n] = *reinterpret_cast<const Words*>(&s.x_of(turn, n));
  uint32_t out[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const float2 x0 = unpack2(x[0].of[p]), x1 = unpack2(x[1].of[p]), x2 = unpack2(x[2].of[p]), x3 = unpack2(x[3].of[p]);
    const float2 v = unpack2(pack2(pre.x * x0.x + pre.y * x1.x + pre.z * x2.x + pre.w * x3.x, pre.x * x0.y + pre.y * x1.y + pre.z * x2.y + pre.w * x3.y));
    const float2 w = unpack2(gain.of[p]);
    out[p] = pack2(w.x * v.x * inverse, w.y * v.y * inverse);
  }
  const int row = tile * kTokens + g;
  if (kStores && row < a.tokens && channel < a.channels) reinterpret_cast<uint4*>(a.x)[place_of(row, a.channels, channel)] = make_uint4(out[0], out[1], out[2], out[3]);
}

__device__ __forceinline__ Words norm_gains(const RingArguments& a, int channel) {
  if (channel >= a.channels) return Words{};
  if (a.weight_bf16) return *reinterpret_cast<const Words*>(static_cast<const __nv_bfloat16*>(a.norm_weight) + channel);
  const float* w = static_cast<const float*>(a.norm_weight) + channel;
  return Words{{pack2(w[0], w[1]), pack2(w[2], w[3]), pack2(w[4], w[5]), pack2(w[6], w[7])}};
}

}  // namespace
