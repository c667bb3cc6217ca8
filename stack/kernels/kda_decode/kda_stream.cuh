// What a verify's rows and the fold of accepted rows have in common as streams of states: while a block computes one head of one request, the next one's
// state and rows are on their way into shared memory.
//
// A row is prepared as `kda_step.cu` prepares it, without the branches for the ends of the range: the same bits (sigmoids below 2^-126 and quotients below
// 2^-90 become zero or lose their last bit). The product form takes rows as operands, each value as two BF16 terms.
#pragma once
#include "../roles.cuh"
#include "kda_rule.cuh"

namespace {

using BF16 = __nv_bfloat16;

// Blocks a multiprocessor holds: of those with a state in registers, and of those with products.
#ifndef KDA_BLOCKS
#define KDA_BLOCKS 2
#endif
#ifndef KDA_CHUNK_BLOCKS
#define KDA_CHUNK_BLOCKS 3
#endif

// 1 / (1 + exp(-x)) and x / y as the operators give them, without the branches for the ends of the range.
__device__ __forceinline__ float straight_reciprocal(float y) {
  const float r = fast_reciprocal(y);
  return __fmaf_rn(r, __fmaf_rn(r, -y, 1.f), r);
}
__device__ __forceinline__ float straight_sigmoid(float x) {
  const float y = 1.f + expf(-x);
  return straight_reciprocal(y > 3.4e38f ? 3.4e38f : y);
}
__device__ __forceinline__ float straight_quotient(float x, float y) {
  const float r = straight_reciprocal(y), q = __fmul_rn(x, r);
  return __fmaf_rn(r, __fmaf_rn(q, -y, x), q);
}

__device__ __forceinline__ float4 straight_normed(float4 x, float scale) {
  const float root = sqrtf(squares(x) + 1e-6f);
  return make_float4(straight_quotient(x.x, root) * scale, straight_quotient(x.y, root) * scale, straight_quotient(x.z, root) * scale,
                     straight_quotient(x.w, root) * scale);
}

__device__ __forceinline__ float convolved(float before3, float before2, float before1, float now, float4 taps) {
  const float y = __fmaf_rn(now, taps.w, __fmaf_rn(before1, taps.z, __fmaf_rn(before2, taps.y, __fmul_rn(before3, taps.x))));
  return y * straight_sigmoid(y);
}

constexpr int kRow = kD + 8;  // of BF16 fragments: eight rows in different banks

// Rows as the ring holds them, one warp a row.
struct RawRows {
  __align__(16) BF16 k[kMaxRows][kD], q[kMaxRows][kD], v[kMaxRows][kRow];
  float g[kMaxRows][kD];
};

// A warp asks for row w. `q` is null where no outputs are wanted.
__device__ __forceinline__ void fetch_row(RawRows& to, int w, const BF16* k, const BF16* v, const float* g, const BF16* q) {
  const int lane = threadIdx.x % 32, half = lane % 16;
  const BF16* from = lane < 16 ? k : v;
  copy16(shared_address((lane < 16 ? to.k[w] : to.v[w]) + half * 8), from + half * 8, true);
  copy16(shared_address(to.g[w] + lane * 4), g + lane * 4, true);
  if (q != nullptr && lane < 16) copy16(shared_address(to.q[w] + half * 8), q + half * 8, true);
}

// A state in shared memory: rows of 16-byte pieces, each row's pieces exchanged so that what a warp reads together lies in different banks: one value of
// each of the eight key groups, or fragments of a matrix product.
template <typename State, bool kFragments> struct Stage {
  static constexpr int kSize = sizeof(State), kPieces = 8 * kSize, kValues = 16 / kSize;
  __align__(16) State values[kD * kD];

  static __device__ __forceinline__ int exchange(int row) {
    return kFragments ? (kSize == 2 ? row & 7 : (row >> 1 & 3) * 2) : row / kKeys * kSize;
  }

  __device__ __forceinline__ void fetch(const State* from) {
#pragma unroll
    for (int i = 0; i < kD * kPieces / kThreads; ++i) {
      const int n = i * kThreads + threadIdx.x, row = n / kPieces, piece = n % kPieces;
      copy16(shared_address(values + (row * kPieces + (piece ^ exchange(row))) * kValues), from + n * kValues, true);
    }
  }

  __device__ __forceinline__ void take(float (&s)[kKeys][4], const Place& at) const {
    static_assert(!kFragments);
    const int piece = (at.first / kValues) ^ (at.group * kSize);
    const State* mine = values + (at.group * kKeys * kPieces + piece) * kValues + at.first % kValues;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const float4 x = load4(mine + i * kPieces * kValues);
      s[i][0] = x.x, s[i][1] = x.y, s[i][2] = x.z, s[i][3] = x.w;
    }
  }
};

// A warp turns row w into what `step` reads.
template <bool kOutput> __device__ __forceinline__ void ready_row(Row& row, const RawRows& raw, int w, float beta, float scale) {
  const int lane = threadIdx.x % 32;
  *channels(row.k, lane) = straight_normed(load4(raw.k[w] + lane * 4), 1.f);
  if constexpr (kOutput) *channels(row.q, lane) = straight_normed(load4(raw.q[w] + lane * 4), scale);
  *reinterpret_cast<float4*>(row.v + lane * 4) = load4(raw.v[w] + lane * 4);
  *channels(row.decay, lane) = decays(load4(raw.g[w] + lane * 4));
  if (lane == 0) row.beta = beta;
}

// Rows as operands of matrix products, each value as two BF16 terms. E is the product of decays up to a row, E_a that of all rows.
template <int kLeft> struct Operands {
  __align__(16) BF16 high[kLeft][kRow], low[kLeft][kRow];  // k_t E_t, then, of sixteen, q_t E_t
  __align__(16) BF16 inverse_high[kMaxRows][kRow], inverse_low[kMaxRows][kRow];  // k_s / E_s
};

__device__ __forceinline__ void store_terms(BF16* high, BF16* low, float4 x, float4 gain) {
  uint2 h, l;
  halves(x.x * gain.x, x.y * gain.y, h.x, l.x), halves(x.z * gain.z, x.w * gain.w, h.y, l.y);
  *reinterpret_cast<uint2*>(high) = h, *reinterpret_cast<uint2*>(low) = l;
}

__device__ __forceinline__ float4 roughly_normed(float4 x, float scale) {
  float square = x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) square += __shfl_xor_sync(~0u, square, lane);
  const float gain = fast_rsqrt(square + 1e-6f) * scale;
  return make_float4(x.x * gain, x.y * gain, x.z * gain, x.w * gain);
}

__device__ __forceinline__ float4 raised(float4 log, float times) {
  times *= 1.4426950408889634f;
  return make_float4(fast_exp2(log.x * times), fast_exp2(log.y * times), fast_exp2(log.z * times), fast_exp2(log.w * times));
}

__device__ __forceinline__ void add(float4& to, float4 x) { to.x += x.x, to.y += x.y, to.z += x.z, to.w += x.w; }

// Warp w turns row w into operands; rows beyond the last become zeros. Gives k and what the decays of the rows behind add up to, for channels 4 lane ..
// 4 lane + 3, and through `log` the sum up to row w.
template <int kLeft> __device__ __forceinline__ float4 ready_operands(Operands<kLeft>& of, const RawRows& raw, int count, float scale, float4& log, float4& behind) {
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  float4 k = make_float4(0.f, 0.f, 0.f, 0.f), q = k;
  log = behind = k;
#pragma unroll
  for (int row = 0; row < kMaxRows; ++row)
    if (row < count && row <= w) add(log, load4(raw.g[row] + lane * 4));
    else if (row < count && kLeft == 8) add(behind, load4(raw.g[row] + lane * 4));
  if (w < count) {
    k = roughly_normed(load4(raw.k[w] + lane * 4), 1.f);
    if constexpr (kLeft == 16) q = roughly_normed(load4(raw.q[w] + lane * 4), scale);
  }
  const float4 down = raised(log, 1.f);
  store_terms(of.high[w] + lane * 4, of.low[w] + lane * 4, k, down);
  if constexpr (kLeft == 16) store_terms(of.high[8 + w] + lane * 4, of.low[8 + w] + lane * 4, q, down);
  store_terms(of.inverse_high[w] + lane * 4, of.inverse_low[w] + lane * 4, k, raised(log, -1.f));
  return k;
}

// The left operand's two terms for keys 16 step .. 16 step + 15; of eight rows, the other eight are zeros.
__device__ __forceinline__ void load_left(uint32_t (&high)[4], uint32_t (&low)[4], const Operands<16>& of, int step) {
  const int lane = threadIdx.x % 32, column = step * 16 + lane / 16 * 8;
  ldmatrix(high, shared_address(&of.high[lane % 16][column])), ldmatrix(low, shared_address(&of.low[lane % 16][column]));
}
__device__ __forceinline__ void load_left(uint32_t (&high)[4], uint32_t (&low)[4], const Operands<8>& of, int step) {
  const int lane = threadIdx.x % 32, column = step * 16 + lane / 8 % 2 * 8;
  uint32_t r[4];
  ldmatrix(r, shared_address(lane < 16 ? &of.high[lane % 8][column] : &of.low[lane % 8][column]));
  high[0] = r[0], high[1] = 0, high[2] = r[1], high[3] = 0, low[0] = r[2], low[1] = 0, low[2] = r[3], low[3] = 0;
}

__device__ __forceinline__ uint32_t two(const BF16* at) { return *reinterpret_cast<const uint32_t*>(at); }

// What rows read of the state, in the warp's 16 columns: one product on the tensor cores.
template <int kLeft> __device__ __forceinline__ void read_state(float (&seen)[2][4], const Operands<kLeft>& of, const Stage<BF16, true>& stage) {
  const int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 2 + lane / 16, row = lane % 16;
  const uint32_t from = shared_address(stage.values + (row * stage.kPieces + (column ^ (row & 7))) * 8);
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    uint32_t high[4], low[4], b[4];
    load_left(high, low, of, step);
    ldmatrix_t(b, from + step * 16 * kD * 2);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) mma_bf16(seen[tile], low, b[2 * tile], b[2 * tile + 1]);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) mma_bf16(seen[tile], high, b[2 * tile], b[2 * tile + 1]);
  }
}
template <int kLeft> __device__ __forceinline__ void read_state(float (&seen)[2][4], const Operands<kLeft>& of, const Stage<float, true>& stage) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    uint32_t high[4], low[4];
    load_left(high, low, of, step);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const int column = threadIdx.x / 32 * 16 + tile * 8 + g;
      const float* from = stage.values + (step * 16 + 2 * t) * kD + ((column / 4) ^ (2 * t)) * 4 + column % 4;
      uint32_t b0, b1, c0, c1;
      halves(from[0], from[kD], b0, c0), halves(from[8 * kD], from[9 * kD], b1, c1);
      mma_bf16(seen[tile], low, b0, b1), mma_bf16(seen[tile], high, c0, c1), mma_bf16(seen[tile], high, b0, b1);
    }
  }
}

// What rows read of each other, for sixteen keys a warp.
template <int kLeft> __device__ __forceinline__ void multiply_pairs(float (&pairs)[kLeft][kMaxRows], const Operands<kLeft>& of) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, at = warp * 16 + 2 * t;
  uint32_t high[4], low[4];
  float sum[4] = {};
  load_left(high, low, of, warp);
  const uint32_t b0 = two(of.inverse_high[g] + at), b1 = two(of.inverse_high[g] + at + 8);
  mma_bf16(sum, low, b0, b1), mma_bf16(sum, high, two(of.inverse_low[g] + at), two(of.inverse_low[g] + at + 8)), mma_bf16(sum, high, b0, b1);
  *reinterpret_cast<float2*>(&pairs[g][2 * t]) = make_float2(sum[0], sum[1]);
  if constexpr (kLeft == 16) *reinterpret_cast<float2*>(&pairs[8 + g][2 * t]) = make_float2(sum[2], sum[3]);
}

// A lane's row g of the sum of the pairs, zero on and above the diagonal (above it for outputs): columns 2t and 2t + 1.
template <int kLeft> __device__ __forceinline__ void sum_pairs(float (&sum)[2], const float (&pairs)[kThreads / 32][kLeft][kMaxRows], bool of_outputs) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  sum[0] = sum[1] = 0.f;
#pragma unroll
  for (int part = 0; part < kThreads / 32; ++part) {
    const float2 x = *reinterpret_cast<const float2*>(&pairs[part][g + (of_outputs ? 8 : 0)][2 * t]);
    sum[0] += x.x, sum[1] += x.y;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (2 * t + i > (of_outputs ? g : g - 1)) sum[i] = 0.f;
}

// A warp's sixteen columns of v: of row g columns 8 (c / 2) + 2t + c % 2.
__device__ __forceinline__ void take_values(float (&v)[4], const RawRows& raw, int count) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const float2 two = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.v[g][threadIdx.x / 32 * 16 + tile * 8 + 2 * t]));
    v[2 * tile] = g < count ? two.x : 0.f, v[2 * tile + 1] = g < count ? two.y : 0.f;
  }
}


}  // namespace
