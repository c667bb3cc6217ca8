// A verify's rows and the fold of accepted rows as streams of states: while a block computes one head of one request, the next one's state and rows
// are on their way into shared memory. Rows are spread first, by a launch of its own, into the replay ring, from where they are read as a commit reads them.
//
// `spread_rows` writes what `kda_step.cu` writes, `chain` and `fold` repeat its recurrence: the same bits (sigmoids below 2^-126 and quotients below
// 2^-90 become zero or lose their last bit). `chunk` is the product form.
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
  float square = __fmaf_rn(x.w, x.w, __fmaf_rn(x.z, x.z, __fmaf_rn(x.y, x.y, __fmul_rn(x.x, x.x))));
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) square += __shfl_xor_sync(~0u, square, lane);
  const float root = sqrtf(square + 1e-6f);
  return make_float4(straight_quotient(x.x, root) * scale, straight_quotient(x.y, root) * scale, straight_quotient(x.z, root) * scale,
                     straight_quotient(x.w, root) * scale);
}

__device__ __forceinline__ float4 widened(uint2 raw) {
  const float2 a = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.x)), b = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.y));
  return make_float4(a.x, a.y, b.x, b.y);
}

__device__ __forceinline__ float convolved(float before3, float before2, float before1, float now, float4 taps) {
  const float y = __fmaf_rn(now, taps.w, __fmaf_rn(before1, taps.z, __fmaf_rn(before2, taps.y, __fmul_rn(before3, taps.x))));
  return y * straight_sigmoid(y);
}

// One block of four warps per (head, request): q into `out`, k and v into the ring, gates into the ring. A lane has four channels of all rows.
__device__ __forceinline__ void spread_rows(const StepArguments& a) {
  const int head = blockIdx.x, request = blockIdx.y, part = threadIdx.x / 32, lane = threadIdx.x % 32, width = a.width;
  const int64_t part_size = static_cast<int64_t>(a.num_heads) * kD, channel = static_cast<int64_t>(head) * kD + lane * 4;
  const int64_t row0 = static_cast<int64_t>(request) * width;
  BF16* out = static_cast<BF16*>(a.out) + row0 * part_size + channel;
  const int slot = a.slot[request], entry = a.entry[request];
  uint2 raw[kMaxRows];
  const BF16* from = part == 3 ? static_cast<const BF16*>(a.f) + row0 * a.f_row + head * a.f_head + lane * 4
                               : static_cast<const BF16*>(a.x) + row0 * a.x_row + part * part_size + channel;
  const int64_t from_row = part == 3 ? a.f_row : a.x_row;
#pragma unroll
  for (int w = 0; w < kMaxRows; ++w)
    if (w < width) raw[w] = *reinterpret_cast<const uint2*>(from + w * from_row);
  if (slot == 0 || entry == 0) {
    if (part == 0)
      for (int w = 0; w < width; ++w) *reinterpret_cast<uint2*>(out + w * part_size) = make_uint2(0u, 0u);
    return;
  }
  if (part == 3) {
    const float pace = expf(static_cast<const float*>(a.a_log)[head]);
    const float4 bias = load4(static_cast<const float*>(a.dt_bias) + channel);
    float* gates = a.ring_g + entry * a.ring_g_entry + channel;
    if (lane < width)
      a.ring_beta[entry * a.ring_beta_entry + lane * a.ring_beta_row + head] = straight_sigmoid(to_float(static_cast<const BF16*>(a.b)[(row0 + lane) * a.b_row + head]));
#pragma unroll
    for (int w = 0; w < kMaxRows; ++w) {
      if (w >= width) break;
      const float4 f = widened(raw[w]);
      store4(gates + w * a.ring_g_row,
             make_float4(a.lower_bound * straight_sigmoid(pace * (f.x + bias.x)), a.lower_bound * straight_sigmoid(pace * (f.y + bias.y)),
                         a.lower_bound * straight_sigmoid(pace * (f.z + bias.z)), a.lower_bound * straight_sigmoid(pace * (f.w + bias.w))));
    }
    return;
  }
  const int64_t at = part * part_size + channel;
  const BF16* window = static_cast<const BF16*>(a.conv) + slot * a.conv_slot + head * a.conv_head + (part * kD + lane * 4) * 3;
  float before[3][4];
  float4 taps[4];
#pragma unroll
  for (int i = 0; i < 3; ++i) {  // twelve neighbouring values, channel by channel
    const float4 four = load4(window + i * 4);
    const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) before[(i * 4 + j) % 3][(i * 4 + j) / 3] = values[j];
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) taps[c] = load4(static_cast<const float*>(a.weight) + (at + c) * 4);
  BF16* kept = static_cast<BF16*>(a.ring_x) + entry * a.ring_x_entry + at;
  BF16* to = part == 0 ? out : static_cast<BF16*>(part == 1 ? a.ring_k : a.ring_v) + entry * a.ring_k_entry + channel;
  const int64_t to_row = part == 0 ? part_size : a.ring_k_row;
#pragma unroll
  for (int w = 0; w < kMaxRows; ++w) {
    if (w >= width) break;
    *reinterpret_cast<uint2*>(kept + w * a.ring_x_row) = raw[w];
    const float4 now4 = widened(raw[w]);
    const float now[4] = {now4.x, now4.y, now4.z, now4.w};
    float u[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      u[c] = convolved(before[0][c], before[1][c], before[2][c], now[c], taps[c]);
      before[0][c] = before[1][c], before[1][c] = before[2][c], before[2][c] = now[c];
    }
    store4(to + w * to_row, make_float4(u[0], u[1], u[2], u[3]));
  }
}

// Rows as the ring holds them, one warp a row.
struct RawRows {
  BF16 k[kMaxRows][kD], v[kMaxRows][kD], q[kMaxRows][kD];
  float g[kMaxRows][kD];
};

// Warp w asks for row w. `q` is null where no outputs are wanted.
__device__ __forceinline__ void fetch_row(RawRows& to, const BF16* k, const BF16* v, const float* g, const BF16* q) {
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32, half = lane % 16;
  const BF16* from = lane < 16 ? k : v;
  copy16(shared_address((lane < 16 ? to.k[w] : to.v[w]) + half * 8), from + half * 8, true);
  copy16(shared_address(to.g[w] + lane * 4), g + lane * 4, true);
  if (q != nullptr && lane < 16) copy16(shared_address(to.q[w] + half * 8), q + half * 8, true);
}

// A state in shared memory: rows of 16-byte pieces, each row's pieces exchanged so that what a warp reads together lies in different banks: one value of
// each of the eight key groups, or fragments of a matrix product.
template <typename State, bool kFragments> struct Stage {
  static constexpr int kPieces = 8 * sizeof(State), kValues = 16 / sizeof(State), kSize = sizeof(State);
  __align__(16) State values[kD * kD];

  static __device__ __forceinline__ int exchange(int row) { return kFragments ? (kSize == 2 ? row & 7 : (row >> 1 & 3) * 2) : row / kKeys * kSize; }

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

// Warp w turns row w into what `step` reads.
template <bool kOutput> __device__ __forceinline__ void ready_row(Row& row, const RawRows& raw, float beta, float scale) {
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  *channels(row.k, lane) = straight_normed(load4(raw.k[w] + lane * 4), 1.f);
  if constexpr (kOutput) *channels(row.q, lane) = straight_normed(load4(raw.q[w] + lane * 4), scale);
  *reinterpret_cast<float4*>(row.v + lane * 4) = load4(raw.v[w] + lane * 4);
  *channels(row.decay, lane) = decays(load4(raw.g[w] + lane * 4));
  if (lane == 0) row.beta = beta;
}

// What a block has asked for: the slot, or 0 where there is nothing to do, and beta of the row of this warp.
struct Asked {
  int slot;
  float beta;
};

// Asks for state and rows of a turn of a verify, (request, head) in this order.
template <typename Shared> __device__ __forceinline__ Asked fetch_turn(Shared& s, const StepArguments& a, int turn, int turns) {
  const int warp = threadIdx.x / 32, request = turn / a.num_heads, head = turn % a.num_heads;
  const int64_t row_size = static_cast<int64_t>(a.num_heads) * kD;
  Asked asked{0, 0.f};
  if (turn < turns && a.entry[request] != 0) asked.slot = a.slot[request];
  if (asked.slot != 0) {
    s.stage.fetch(static_cast<const typename Shared::State*>(a.state) + asked.slot * a.state_slot + head * a.state_head);
    if (warp < a.width) {
      const int64_t entry = a.entry[request], at_k = entry * a.ring_k_entry + warp * a.ring_k_row + head * kD;
      fetch_row(s.raw, static_cast<const BF16*>(a.ring_k) + at_k, static_cast<const BF16*>(a.ring_v) + at_k, a.ring_g + entry * a.ring_g_entry + warp * a.ring_g_row + head * kD,
                static_cast<const BF16*>(a.out) + (static_cast<int64_t>(request) * a.width + warp) * row_size + head * kD);
      asked.beta = a.ring_beta[entry * a.ring_beta_entry + warp * a.ring_beta_row + head];
    }
  }
  copies_commit();
  return asked;
}

template <typename T> struct ChainShared {
  using State = T;
  Stage<State, false> stage;
  RawRows raw;
  Row rows[kMaxRows];
};

// Blocks walk over (request, head), a verify's rows a turn.
template <typename State> __device__ __forceinline__ void chain(const StepArguments& a, int requests) {
  extern __shared__ __align__(16) uint8_t raw_shared[];
  ChainShared<State>& s = *reinterpret_cast<ChainShared<State>*>(raw_shared);
  const int warp = threadIdx.x / 32, turns = requests * a.num_heads, width = a.width;
  const int64_t row_size = static_cast<int64_t>(a.num_heads) * kD;
  const Place at = place();
  Asked next = fetch_turn(s, a, blockIdx.x, turns);
#pragma unroll 1
  for (int turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    copies_wait<0>();
    __syncthreads();
    const bool live = next.slot != 0;
    float state[kKeys][4];
    if (live) {
      if (warp < width) ready_row<true>(s.rows[warp], s.raw, next.beta, a.scale);
      s.stage.take(state, at);
    }
    __syncthreads();
    next = fetch_turn(s, a, turn + gridDim.x, turns);
    if (!live) continue;
    const int request = turn / a.num_heads, head = turn % a.num_heads;
    BF16* mine = static_cast<BF16*>(a.out) + static_cast<int64_t>(request) * width * row_size + head * kD + at.owned;
#pragma unroll 1
    for (int w = 0; w < width; ++w) {
      const float o = step<true>(state, s.rows[w], at);
      if (!at.twin) mine[w * row_size] = from_float<BF16>(o);
    }
  }
}

constexpr int kRow = kD + 8;  // of fragments: eight rows in different banks

// Rows as operands of matrix products, each value as two BF16 terms. E is the product of decays up to a row.
struct Operands {
  __align__(16) BF16 high[16][kRow], low[16][kRow];  // k_t E_t, then q_t E_t
  __align__(16) BF16 inverse_high[kMaxRows][kRow], inverse_low[kMaxRows][kRow];  // k_s / E_s
};

template <typename T> struct ChunkShared {
  using State = T;
  Stage<State, true> stage;
  RawRows raw;
  Operands of;
  float pairs[kThreads / 32][16][kMaxRows];  // k_t . k_s E_t / E_s, then q_t . k_s E_t / E_s, by sixteen keys
  float beta[kMaxRows];
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

// Warp w turns row w into operands; rows beyond the last become zeros.
__device__ __forceinline__ void ready_operands(Operands& of, const RawRows& raw, int count, float scale) {
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  float4 log = make_float4(0.f, 0.f, 0.f, 0.f), k = log, q = log;
#pragma unroll
  for (int before = 0; before < kMaxRows; ++before)
    if (before <= w && before < count) {
      const float4 g = load4(raw.g[before] + lane * 4);
      log.x += g.x, log.y += g.y, log.z += g.z, log.w += g.w;
    }
  if (w < count) k = roughly_normed(load4(raw.k[w] + lane * 4), 1.f), q = roughly_normed(load4(raw.q[w] + lane * 4), scale);
  constexpr float kLog2 = 1.4426950408889634f;
  const float4 down = make_float4(fast_exp2(log.x * kLog2), fast_exp2(log.y * kLog2), fast_exp2(log.z * kLog2), fast_exp2(log.w * kLog2));
  const float4 up = make_float4(fast_exp2(log.x * -kLog2), fast_exp2(log.y * -kLog2), fast_exp2(log.z * -kLog2), fast_exp2(log.w * -kLog2));
  store_terms(of.high[w] + lane * 4, of.low[w] + lane * 4, k, down);
  store_terms(of.high[8 + w] + lane * 4, of.low[8 + w] + lane * 4, q, down);
  store_terms(of.inverse_high[w] + lane * 4, of.inverse_low[w] + lane * 4, k, up);
}

// The left operand of keys 16 step .. 16 step + 15.
__device__ __forceinline__ void load_left(uint32_t (&r)[4], const BF16 (&rows)[16][kRow], int step) {
  const int lane = threadIdx.x % 32;
  ldmatrix(r, shared_address(&rows[lane % 16][step * 16 + lane / 16 * 8]));
}

__device__ __forceinline__ uint32_t two(const BF16* at) { return *reinterpret_cast<const uint32_t*>(at); }

// What rows read of the state, 16 rows by the warp's 16 columns: one product on the tensor cores.
__device__ __forceinline__ void read_state(float (&seen)[2][4], const Operands& of, const Stage<BF16, true>& stage) {
  const int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 2 + lane / 16, row = lane % 16;
  const uint32_t from = shared_address(stage.values + (row * stage.kPieces + (column ^ (row & 7))) * 8);
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    uint32_t high[4], low[4], b[4];
    load_left(high, of.high, step), load_left(low, of.low, step);
    ldmatrix_t(b, from + step * 16 * kD * 2);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) mma_bf16(seen[tile], low, b[2 * tile], b[2 * tile + 1]);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) mma_bf16(seen[tile], high, b[2 * tile], b[2 * tile + 1]);
  }
}
__device__ __forceinline__ void read_state(float (&seen)[2][4], const Operands& of, const Stage<float, true>& stage) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    uint32_t high[4], low[4];
    load_left(high, of.high, step), load_left(low, of.low, step);
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
__device__ __forceinline__ void multiply_pairs(float (&pairs)[16][kMaxRows], const Operands& of) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, at = warp * 16 + 2 * t;
  uint32_t high[4], low[4];
  float sum[4] = {};
  load_left(high, of.high, warp), load_left(low, of.low, warp);
  const uint32_t b0 = two(of.inverse_high[g] + at), b1 = two(of.inverse_high[g] + at + 8);
  mma_bf16(sum, low, b0, b1), mma_bf16(sum, high, two(of.inverse_low[g] + at), two(of.inverse_low[g] + at + 8)), mma_bf16(sum, high, b0, b1);
  *reinterpret_cast<float2*>(&pairs[g][2 * t]) = make_float2(sum[0], sum[1]);
  *reinterpret_cast<float2*>(&pairs[8 + g][2 * t]) = make_float2(sum[2], sum[3]);
}

// A lane's row g of a sum of the pairs that is zero on and above the diagonal (above it for outputs): columns 2t and 2t + 1.
__device__ __forceinline__ void sum_pairs(float (&sum)[2], const float (&pairs)[kThreads / 32][16][kMaxRows], bool of_outputs) {
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

// A verify's rows at once: u_t = beta_t (v_t - (k_t E_t)'S - sum_{s<t} (k_t . k_s E_t / E_s) u_s), o_t = (q_t E_t)'S + sum_{s<=t} (q_t . k_s E_t / E_s) u_s.
// Four lanes have a row of sixteen columns; u of a row goes to the rows below by shuffles.
template <typename State> __device__ __forceinline__ void chunk(const StepArguments& a, int requests) {
  extern __shared__ __align__(16) uint8_t raw_shared[];
  ChunkShared<State>& s = *reinterpret_cast<ChunkShared<State>*>(raw_shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, turns = requests * a.num_heads, width = a.width;
  const int64_t row_size = static_cast<int64_t>(a.num_heads) * kD;
  Asked next = fetch_turn(s, a, blockIdx.x, turns);
#pragma unroll 1
  for (int turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    copies_wait<0>();
    __syncthreads();
    const bool live = next.slot != 0;
    float seen[2][4] = {};
    float left[4] = {};
    if (live) {
      ready_operands(s.of, s.raw, width, a.scale);
      if (lane == 0) s.beta[warp] = next.beta;
      if (g < width) {
#pragma unroll
        for (int c = 0; c < 4; ++c) left[c] = to_float(s.raw.v[g][warp * 16 + c / 2 * 8 + 2 * t + c % 2]);
      }
    }
    __syncthreads();
    if (live) {
      multiply_pairs(s.pairs[warp], s.of);
      read_state(seen, s.of, s.stage);
    }
    __syncthreads();
    next = fetch_turn(s, a, turn + gridDim.x, turns);
    if (!live) continue;
    float of_updates[2], of_outputs[2], o[4];
    sum_pairs(of_updates, s.pairs, false), sum_pairs(of_outputs, s.pairs, true);
    const float beta = g < width ? s.beta[g] : 0.f;
#pragma unroll
    for (int c = 0; c < 4; ++c) left[c] -= seen[c / 2][c % 2], o[c] = seen[c / 2][2 + c % 2];
#pragma unroll
    for (int row = 0; row < kMaxRows; ++row) {
      const float update = __shfl_sync(~0u, of_updates[row % 2], g * 4 + row / 2), output = __shfl_sync(~0u, of_outputs[row % 2], g * 4 + row / 2);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float u = __shfl_sync(~0u, beta * left[c], row * 4 + t);
        left[c] -= update * u, o[c] += output * u;
      }
    }
    const int request = turn / a.num_heads, head = turn % a.num_heads;
    if (g < width) {
      BF16* mine = static_cast<BF16*>(a.out) + (static_cast<int64_t>(request) * width + g) * row_size + head * kD + warp * 16 + 2 * t;
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) *reinterpret_cast<__nv_bfloat162*>(mine + tile * 8) = __floats2bfloat162_rn(o[2 * tile], o[2 * tile + 1]);
    }
  }
}

template <typename State> struct FoldShared {
  Stage<State, false> stage;
  RawRows raw;
  Row rows[kMaxRows];
  __align__(16) BF16 inputs[3 * 3 * kD];  // the last three rows of the convolution's inputs
  __align__(16) BF16 window[3 * kD * 3];
};

// Blocks walk over (request, layer, head).
template <typename State> __device__ __forceinline__ void fold(const FoldArguments& a, int layers, int requests) {
  extern __shared__ __align__(16) uint8_t raw_shared[];
  FoldShared<State>& s = *reinterpret_cast<FoldShared<State>*>(raw_shared);
  constexpr int kPieces = 3 * 3 * kD / 8;  // of a window, 16 bytes each
  const int warp = threadIdx.x / 32, each = layers * a.num_heads, turns = requests * each, stride = gridDim.x;
  const Place at = place();
  float next_beta = 0.f;

  const auto state_of = [&](int slot, int layer, int head) { return static_cast<State*>(a.state) + slot * a.state_slot + head * a.state_head + layer * a.state_layer; };
  const auto window_of = [&](int slot, int layer, int head) {
    return static_cast<BF16*>(a.conv) + slot * a.conv_slot + head * a.conv_head + layer * a.conv_layer;
  };
  // Gives how many rows of a turn are accepted; 0 where there is nothing to do.
  const auto fetch = [&](int turn) {
    int accepted = 0;
    if (turn < turns) {
      const int request = turn / each, layer = turn % each / a.num_heads, head = turn % a.num_heads, slot = a.slot[request], entry = a.entry[request];
      accepted = slot == 0 || entry == 0 ? 0 : max(0, a.accepted[request]);
      if (accepted > 0) {
        s.stage.fetch(state_of(slot, layer, head));
        if (warp < accepted) {
          const int64_t at_k = layer * a.k_layer + entry * a.k_entry + warp * a.k_row + head * kD;
          fetch_row(s.raw, static_cast<const BF16*>(a.ring_k) + at_k, static_cast<const BF16*>(a.ring_v) + at_k,
                    a.ring_g + layer * a.g_layer + entry * a.g_entry + warp * a.g_row + head * kD, nullptr);
          next_beta = a.ring_beta[layer * a.beta_layer + entry * a.beta_entry + warp * a.beta_row + head];
        }
        if (threadIdx.x < kPieces) {
          const int piece = threadIdx.x, row = accepted - 3 + piece / 48, part = piece / 16 % 3;
          if (row >= 0)
            copy16(shared_address(s.inputs + piece * 8),
                   static_cast<const BF16*>(a.ring_x) + layer * a.x_layer + entry * a.x_entry + row * a.x_row + (part * static_cast<int64_t>(a.num_heads) + head) * kD + piece % 16 * 8, true);
          if (accepted < 3) copy16(shared_address(s.window + piece * 8), window_of(slot, layer, head) + piece * 8, true);
        }
      }
    }
    copies_commit();
    return accepted;
  };

  int next = fetch(blockIdx.x);
#pragma unroll 1
  for (int turn = blockIdx.x; turn < turns; turn += stride) {
    copies_wait<0>();
    __syncthreads();
    const int accepted = next, request = turn / each, layer = turn % each / a.num_heads, head = turn % a.num_heads;
    const int slot = accepted > 0 ? a.slot[request] : 0;
    float state[kKeys][4];
    if (accepted > 0) {
      if (warp < accepted) ready_row<false>(s.rows[warp], s.raw, next_beta, 1.f);
      s.stage.take(state, at);
      if (threadIdx.x < kPieces) {  // the window becomes the three inputs that end at the last accepted row
        __align__(16) BF16 eight[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int value = threadIdx.x * 8 + i, channel = value / 3, tap = value % 3, row = accepted + tap - 3;
          eight[i] = row < 0 ? s.window[value + accepted] : s.inputs[tap * 3 * kD + channel];
        }
        *reinterpret_cast<uint4*>(window_of(slot, layer, head) + threadIdx.x * 8) = *reinterpret_cast<const uint4*>(eight);
      }
    }
    __syncthreads();
    next = fetch(turn + stride);
    if (accepted == 0) continue;
#pragma unroll 1
    for (int w = 0; w < accepted; ++w) step<false>(state, s.rows[w], at);
    store_state(state, state_of(slot, layer, head), at);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) kda_spread_rows(const __grid_constant__ StepArguments a) { spread_rows(a); }

#define ENTRIES(suffix, State)                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(kThreads, KDA_BLOCKS) kda_stream_chain_##suffix(const __grid_constant__ StepArguments a, int requests) { \
    chain<State>(a, requests);                                                                                                                    \
  }                                                                                                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads, sizeof(State) == 4 ? 2 : KDA_CHUNK_BLOCKS) kda_stream_chunk_##suffix(const __grid_constant__ StepArguments a, int requests) { \
    chunk<State>(a, requests);                                                                                                                    \
  }                                                                                                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads, KDA_BLOCKS) kda_stream_fold_##suffix(const __grid_constant__ FoldArguments a, int layers, int requests) { \
    fold<State>(a, layers, requests);                                                                                                             \
  }

ENTRIES(f32, float)
ENTRIES(bf16, __nv_bfloat16)
