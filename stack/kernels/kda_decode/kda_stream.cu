// A verify's rows and the fold of accepted rows as streams of states: while a block computes one head of one request, the next one's state and rows
// are on their way into shared memory. Rows are spread first, by a launch of its own, into the replay ring, from where they are read as a commit reads them.
//
// `spread_rows` writes what `kda_step.cu` writes, `chain` and `fold` repeat its recurrence: the same bits (sigmoids below 2^-126 and quotients below
// 2^-90 become zero or lose their last bit). `chunk` is the product form.
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

constexpr int kRow = kD + 8;  // of BF16 fragments: eight rows in different banks

// Rows as the ring holds them, one warp a row.
struct RawRows {
  __align__(16) BF16 k[kMaxRows][kD], q[kMaxRows][kD], v[kMaxRows][kRow];
  float g[kMaxRows][kD];
};

// One part (q, k, v or gates) of a live request's rows for one head, by one warp: a lane has four channels of all rows. Into the ring, q into `out`; with
// `kStaged` also into `raw` and `beta` in shared memory, q only there.
template <bool kStaged> __device__ __forceinline__ void spread_part(const StepArguments& a, int part, int head, int request, int slot, int entry, RawRows* raw, float* betas) {
  const int lane = threadIdx.x % 32, width = a.width;
  const int64_t part_size = static_cast<int64_t>(a.num_heads) * kD, channel = static_cast<int64_t>(head) * kD + lane * 4;
  const int64_t row0 = static_cast<int64_t>(request) * width;
  uint2 rows[kMaxRows];
  const BF16* from = part == 3 ? static_cast<const BF16*>(a.f) + row0 * a.f_row + head * a.f_head + lane * 4
                               : static_cast<const BF16*>(a.x) + row0 * a.x_row + part * part_size + channel;
  const int64_t from_row = part == 3 ? a.f_row : a.x_row;
#pragma unroll
  for (int w = 0; w < kMaxRows; ++w)
    if (w < width) rows[w] = *reinterpret_cast<const uint2*>(from + w * from_row);
  if (part == 3) {
    const float pace = expf(static_cast<const float*>(a.a_log)[head]);
    const float4 bias = load4(static_cast<const float*>(a.dt_bias) + channel);
    float* gates = a.ring_g + entry * a.ring_g_entry + channel;
    if (lane < width) {
      const float beta = straight_sigmoid(to_float(static_cast<const BF16*>(a.b)[(row0 + lane) * a.b_row + head]));
      a.ring_beta[entry * a.ring_beta_entry + lane * a.ring_beta_row + head] = beta;
      if constexpr (kStaged) betas[lane] = beta;
    }
#pragma unroll
    for (int w = 0; w < kMaxRows; ++w) {
      if (w >= width) break;
      const float4 f = widened(rows[w]);
      const float4 log = make_float4(a.lower_bound * straight_sigmoid(pace * (f.x + bias.x)), a.lower_bound * straight_sigmoid(pace * (f.y + bias.y)),
                                     a.lower_bound * straight_sigmoid(pace * (f.z + bias.z)), a.lower_bound * straight_sigmoid(pace * (f.w + bias.w)));
      store4(gates + w * a.ring_g_row, log);
      if constexpr (kStaged) store4(raw->g[w] + lane * 4, log);
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
  BF16* to = part == 0 ? static_cast<BF16*>(a.out) + row0 * part_size + channel : static_cast<BF16*>(part == 1 ? a.ring_k : a.ring_v) + entry * a.ring_k_entry + channel;
  const int64_t to_row = part == 0 ? part_size : a.ring_k_row;
  BF16* staged = nullptr;
  if constexpr (kStaged) staged = (part == 0 ? raw->q[0] : part == 1 ? raw->k[0] : raw->v[0]) + lane * 4;
  const int staged_row = part == 2 ? kRow : kD;
#pragma unroll
  for (int w = 0; w < kMaxRows; ++w) {
    if (w >= width) break;
    *reinterpret_cast<uint2*>(kept + w * a.ring_x_row) = rows[w];
    const float4 now4 = widened(rows[w]);
    const float now[4] = {now4.x, now4.y, now4.z, now4.w};
    float u[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      u[c] = convolved(before[0][c], before[1][c], before[2][c], now[c], taps[c]);
      before[0][c] = before[1][c], before[1][c] = before[2][c], before[2][c] = now[c];
    }
    const float4 four = make_float4(u[0], u[1], u[2], u[3]);
    if (!kStaged || part != 0) store4(to + w * to_row, four);
    if constexpr (kStaged) store4(staged + w * staged_row, four);
  }
}

__device__ __forceinline__ void write_zeros(const StepArguments& a, int head, int request) {
  const int64_t row_size = static_cast<int64_t>(a.num_heads) * kD;
  BF16* out = static_cast<BF16*>(a.out) + static_cast<int64_t>(request) * a.width * row_size + head * kD + threadIdx.x % 32 * 4;
  for (int w = 0; w < a.width; ++w) *reinterpret_cast<uint2*>(out + w * row_size) = make_uint2(0u, 0u);
}

// One block of four warps, a part each, per (head, request).
__device__ __forceinline__ void spread_rows(const StepArguments& a) {
  const int head = blockIdx.x, request = blockIdx.y, part = threadIdx.x / 32, slot = a.slot[request], entry = a.entry[request];
  if (slot != 0 && entry != 0) spread_part<false>(a, part, head, request, slot, entry, nullptr, nullptr);
  else if (part == 0) write_zeros(a, head, request);
}

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
template <typename Shared> __device__ __forceinline__ Asked fetch_turn(Shared& s, const StepArguments& a, unsigned turn, unsigned turns) {
  const int warp = threadIdx.x / 32;
  const unsigned heads = a.num_heads, request = turn / heads, head = turn - request * heads;
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
  const int warp = threadIdx.x / 32, width = a.width;
  const unsigned turns = requests * a.num_heads;
  const int64_t row_size = static_cast<int64_t>(a.num_heads) * kD;
  const Place at = place();
  Asked next = fetch_turn(s, a, blockIdx.x, turns);
#pragma unroll 1
  for (unsigned turn = blockIdx.x; turn < turns; turn += gridDim.x) {
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
    const unsigned heads = a.num_heads, request = turn / heads, head = turn - request * heads;
    BF16* mine = static_cast<BF16*>(a.out) + static_cast<int64_t>(request) * width * row_size + head * kD + at.owned;
#pragma unroll 1
    for (int w = 0; w < width; ++w) {
      const float o = step<true>(state, s.rows[w], at);
      if (!at.twin) mine[w * row_size] = from_float<BF16>(o);
    }
  }
}

// Rows as operands of matrix products, each value as two BF16 terms. E is the product of decays up to a row, E_a that of all rows.
template <int kLeft> struct Operands {
  __align__(16) BF16 high[kLeft][kRow], low[kLeft][kRow];  // k_t E_t, then, of sixteen, q_t E_t
  __align__(16) BF16 inverse_high[kMaxRows][kRow], inverse_low[kMaxRows][kRow];  // k_s / E_s
};

template <typename T> struct ChunkShared {
  using State = T;
  Stage<State, true> stage;
  RawRows raw;
  Operands<16> of;
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

// Asks for the state of a turn of a verify; the slot, or 0 where there is nothing to do.
template <typename State> __device__ __forceinline__ int fetch_state(Stage<State, true>& stage, const StepArguments& a, unsigned turn, unsigned turns) {
  const unsigned heads = a.num_heads, request = turn / heads, head = turn - request * heads;
  const int slot = turn < turns && a.entry[request] != 0 ? a.slot[request] : 0;
  if (slot != 0) stage.fetch(static_cast<const State*>(a.state) + slot * a.state_slot + head * a.state_head);
  copies_commit();
  return slot;
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

// The triangular recurrence in a warp's registers: four lanes have a row of sixteen columns; u of a row goes to the rows below by shuffles. `v` has the same
// columns as `seen`.
__device__ __forceinline__ void write_outputs(const StepArguments& a, float (&v)[4], const float (&seen)[2][4], const float (&pairs)[kThreads / 32][16][kMaxRows], float beta,
                                              unsigned request, unsigned head) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float of_updates[2], of_outputs[2], o[4];
  sum_pairs(of_updates, pairs, false), sum_pairs(of_outputs, pairs, true);
#pragma unroll
  for (int c = 0; c < 4; ++c) v[c] -= seen[c / 2][c % 2], o[c] = seen[c / 2][2 + c % 2];
#pragma unroll
  for (int row = 0; row < kMaxRows; ++row) {
    const float update = __shfl_sync(~0u, of_updates[row % 2], g * 4 + row / 2), output = __shfl_sync(~0u, of_outputs[row % 2], g * 4 + row / 2);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float u = __shfl_sync(~0u, beta * v[c], row * 4 + t);
      v[c] -= update * u, o[c] += output * u;
    }
  }
  if (g >= a.width) return;
  const int64_t row_size = static_cast<int64_t>(a.num_heads) * kD;
  BF16* mine = static_cast<BF16*>(a.out) + (static_cast<int64_t>(request) * a.width + g) * row_size + head * kD + warp * 16 + 2 * t;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) *reinterpret_cast<__nv_bfloat162*>(mine + tile * 8) = __floats2bfloat162_rn(o[2 * tile], o[2 * tile + 1]);
}

// A verify's rows at once: u_t = beta_t (v_t - (k_t E_t)'S - sum_{s<t} (k_t . k_s E_t / E_s) u_s), o_t = (q_t E_t)'S + sum_{s<=t} (q_t . k_s E_t / E_s) u_s.
template <typename State> __device__ __forceinline__ void chunk(const StepArguments& a, int requests) {
  extern __shared__ __align__(16) uint8_t raw_shared[];
  ChunkShared<State>& s = *reinterpret_cast<ChunkShared<State>*>(raw_shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, width = a.width;
  const unsigned turns = requests * a.num_heads, heads = a.num_heads;
  Asked next = fetch_turn(s, a, blockIdx.x, turns);
#pragma unroll 1
  for (unsigned turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    copies_wait<0>();
    __syncthreads();
    const bool live = next.slot != 0;
    float seen[2][4] = {}, v[4];
    if (live) {
      float4 log, behind;
      ready_operands(s.of, s.raw, width, a.scale, log, behind);
      if (lane == 0) s.beta[warp] = next.beta;
      take_values(v, s.raw, width);
    }
    __syncthreads();
    if (live) {
      multiply_pairs(s.pairs[warp], s.of);
      read_state(seen, s.of, s.stage);
    }
    __syncthreads();
    next = fetch_turn(s, a, turn + gridDim.x, turns);
    if (live) write_outputs(a, v, seen, s.pairs, g < width ? s.beta[g] : 0.f, turn / heads, turn % heads);
  }
}

constexpr int kRowThreads = 128;

template <typename T, int kStages> struct RolesShared {
  Stage<T, true> stage[kStages];
  RawRows raw[2];
  Operands<16> of;
  float pairs[kThreads / 32][16][kMaxRows];
  float beta[2][kMaxRows];
  uint64_t ready[2], free[2];  // barriers of `raw`
};

// `chunk` with the rows by four warps of their own, a part each, which are up to two turns ahead: nothing but states and inputs is read from global memory.
template <typename State, int kStages> __device__ __forceinline__ void chunk_with_roles(const StepArguments& a, int requests) {
  extern __shared__ __align__(16) uint8_t raw_shared[];
  RolesShared<State, kStages>& s = *reinterpret_cast<RolesShared<State, kStages>*>(raw_shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, width = a.width;
  const unsigned turns = requests * a.num_heads, heads = a.num_heads, stride = gridDim.x;
  if (threadIdx.x < 2) {
    barrier_init(shared_address(&s.ready[threadIdx.x]), kRowThreads / 32), barrier_init(shared_address(&s.free[threadIdx.x]), kThreads / 32);
    barrier_init_fence();
  }
  __syncthreads();
  if (warp >= kThreads / 32) {
    int count = 0;
#pragma unroll 1
    for (unsigned turn = blockIdx.x; turn < turns; turn += stride, ++count) {
      const int buffer = count % 2, part = warp - kThreads / 32;
      const unsigned request = turn / heads, head = turn - request * heads;
      const int slot = a.slot[request], entry = a.entry[request];
      wait_here(shared_address(&s.free[buffer]), (count / 2 + 1) % 2);
      if (slot != 0 && entry != 0) spread_part<true>(a, part, head, request, slot, entry, &s.raw[buffer], s.beta[buffer]);
      else if (part == 0) write_zeros(a, head, request);
      __syncwarp();
      if (lane == 0) arrive(shared_address(&s.ready[buffer]));
    }
    return;
  }
  int slots[kStages], count = 0;
#pragma unroll
  for (int i = 0; i < kStages; ++i) slots[i] = fetch_state(s.stage[i], a, blockIdx.x + i * stride, turns);
#pragma unroll 1
  for (unsigned turn = blockIdx.x; turn < turns; turn += stride, ++count) {
    const int buffer = count % 2, stage = count % kStages;
    const bool live = slots[0] != 0;
    copies_wait<kStages - 1>();
    wait_here(shared_address(&s.ready[buffer]), count / 2 % 2);
    float seen[2][4] = {}, v[4], beta = 0.f;
    if (live) {
      float4 log, behind;
      ready_operands(s.of, s.raw[buffer], width, a.scale, log, behind);
      take_values(v, s.raw[buffer], width);
      if (g < width) beta = s.beta[buffer][g];
    }
    sync_some<1, kThreads>();
    if (lane == 0) arrive(shared_address(&s.free[buffer]));
    if (live) {
      multiply_pairs(s.pairs[warp], s.of);
      read_state(seen, s.of, s.stage[stage]);
    }
    sync_some<2, kThreads>();
#pragma unroll
    for (int i = 0; i + 1 < kStages; ++i) slots[i] = slots[i + 1];
    slots[kStages - 1] = fetch_state(s.stage[stage], a, turn + kStages * stride, turns);
    if (live) write_outputs(a, v, seen, s.pairs, beta, turn / heads, turn % heads);
  }
}

constexpr int kWindowPieces = 3 * 3 * kD / 8;  // of 16 bytes

// The ends of the convolution's inputs: the last three accepted rows, and the window that they replace.
struct Ends {
  __align__(16) BF16 inputs[3 * 3 * kD], window[3 * kD * 3];
};

template <typename T> struct FoldShared {
  using State = T;
  Stage<State, false> stage;
  RawRows raw;
  Ends ends;
  Row rows[kMaxRows];
  int64_t state_at, window_at;  // of what is asked for
};

// What a block has asked for: how many rows are accepted, or 0 where there is nothing to do, and beta of the row of this warp.
struct Folded {
  int accepted;
  float beta;
};

// Asks for state, rows and ends of a turn of a fold, (request, layer, head) in this order.
template <typename Shared> __device__ __forceinline__ Folded fetch_fold(Shared& s, const FoldArguments& a, unsigned layers, unsigned turn, unsigned turns) {
  const int warp = threadIdx.x / 32, piece = threadIdx.x;
  Folded asked{0, 0.f};
  if (turn < turns) {
    const unsigned heads = a.num_heads, whole = turn / heads, head = turn - whole * heads, request = whole / layers, layer = whole - request * layers;
    const int64_t slot = a.slot[request], entry = a.entry[request];
    if (slot != 0 && entry != 0) asked.accepted = max(0, a.accepted[request]);
    if (asked.accepted > 0) {
      const int64_t state = slot * a.state_slot + head * a.state_head + layer * a.state_layer, window = slot * a.conv_slot + head * a.conv_head + layer * a.conv_layer;
      if (threadIdx.x == 0) s.state_at = state, s.window_at = window;
      s.stage.fetch(static_cast<const typename Shared::State*>(a.state) + state);
      if (warp < asked.accepted) {
        const int64_t at_k = layer * a.k_layer + entry * a.k_entry + warp * a.k_row + head * kD;
        fetch_row(s.raw, static_cast<const BF16*>(a.ring_k) + at_k, static_cast<const BF16*>(a.ring_v) + at_k, a.ring_g + layer * a.g_layer + entry * a.g_entry + warp * a.g_row + head * kD, nullptr);
        asked.beta = a.ring_beta[layer * a.beta_layer + entry * a.beta_entry + warp * a.beta_row + head];
      }
      if (piece < kWindowPieces) {
        const int row = asked.accepted - 3 + piece / 48;
        const unsigned part = piece / 16 % 3;
        if (row >= 0)
          copy16(shared_address(s.ends.inputs + piece * 8), static_cast<const BF16*>(a.ring_x) + layer * a.x_layer + entry * a.x_entry + row * a.x_row + (part * heads + head) * kD + piece % 16 * 8, true);
        if (asked.accepted < 3) copy16(shared_address(s.ends.window + piece * 8), static_cast<const BF16*>(a.conv) + window + piece * 8, true);
      }
    }
  }
  copies_commit();
  return asked;
}

// The window becomes the three inputs that end at the last accepted row.
__device__ __forceinline__ void replace_window(BF16* window, const Ends& ends, int accepted) {
  if (threadIdx.x >= kWindowPieces) return;
  const auto* inputs = reinterpret_cast<const uint16_t*>(ends.inputs);
  const auto* old = reinterpret_cast<const uint16_t*>(ends.window) + accepted;
  const auto value = [&](unsigned i) { return static_cast<uint32_t>(accepted + static_cast<int>(i % 3) < 3 ? old[i] : inputs[i % 3 * 3 * kD + i / 3]); };
  const unsigned first = threadIdx.x * 8;
  *reinterpret_cast<uint4*>(window + first) = make_uint4(value(first) | value(first + 1) << 16, value(first + 2) | value(first + 3) << 16,
                                                         value(first + 4) | value(first + 5) << 16, value(first + 6) | value(first + 7) << 16);
}

// Blocks walk over (request, layer, head).
template <typename State> __device__ __forceinline__ void fold(const FoldArguments& a, int layers, int requests) {
  extern __shared__ __align__(16) uint8_t raw_shared[];
  FoldShared<State>& s = *reinterpret_cast<FoldShared<State>*>(raw_shared);
  const int warp = threadIdx.x / 32;
  const unsigned turns = requests * layers * a.num_heads;
  const Place at = place();
  Folded next = fetch_fold(s, a, layers, blockIdx.x, turns);
#pragma unroll 1
  for (unsigned turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    copies_wait<0>();
    __syncthreads();
    const int accepted = next.accepted;
    State* to = static_cast<State*>(a.state) + s.state_at;
    float state[kKeys][4];
    if (accepted > 0) {
      if (warp < accepted) ready_row<false>(s.rows[warp], s.raw, next.beta, 1.f);
      s.stage.take(state, at);
      replace_window(static_cast<BF16*>(a.conv) + s.window_at, s.ends, accepted);
    }
    __syncthreads();
    next = fetch_fold(s, a, layers, turn + gridDim.x, turns);
    if (accepted == 0) continue;
#pragma unroll 1
    for (int w = 0; w < accepted; ++w) step<false>(state, s.rows[w], at);
    store_state(state, to, at);
  }
}

template <typename T> struct ChunkFoldShared {
  using State = T;
  Stage<State, true> stage;
  RawRows raw;
  Ends ends;
  Operands<8> of;
  __align__(16) BF16 last_high[kMaxRows][kRow], last_low[kMaxRows][kRow];  // k_s E_a / E_s
  __align__(16) BF16 update_high[kThreads / 32][2][kMaxRows][8], update_low[kThreads / 32][2][kMaxRows][8];  // u of a warp's columns, four lanes' pairs a tile
  float pairs[kThreads / 32][8][kMaxRows];
  float end[kD];  // E_a
  float beta[kMaxRows];
  int64_t state_at, window_at;  // of what is asked for
};

// Columns 4t .. 4t + 3 of a warp's sixteen in a row of the stage.
__device__ __forceinline__ float4 staged(const Stage<BF16, true>& stage, int row, int column) {
  return load4(stage.values + row * kD + ((column / 8) ^ stage.exchange(row)) * 8 + column % 8);
}
__device__ __forceinline__ float4 staged(const Stage<float, true>& stage, int row, int column) { return load4(stage.values + row * kD + ((column / 4) ^ stage.exchange(row)) * 4); }

// S <- E_a S + sum_s (k_s E_a / E_s) u_s' for a warp's sixteen columns, sixteen keys a product: its depth is eight rows in two terms. Column 4t + 2 tile + i
// of the state is column 2t + i of a tile, so that a lane stores four neighbours.
template <typename State> __device__ __forceinline__ void add_updates(State* to, const ChunkFoldShared<State>& s) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, column = warp * 16 + 4 * t;
  uint32_t u[4];  // high of both tiles, low of both
  ldmatrix_t(u, shared_address(lane < 16 ? s.update_high[warp][lane / 8][lane % 8] : s.update_low[warp][lane / 8 % 2][lane % 8]));
#pragma unroll 2
  for (int keys = 0; keys < kD; keys += 16) {
    uint32_t k[4];
    const int at = keys + lane / 8 % 2 * 8;
    ldmatrix_t(k, shared_address(lane < 16 ? &s.last_high[lane % 8][at] : &s.last_low[lane % 8][at]));
    float sum[2][4];
    const float gain[2] = {s.end[keys + g], s.end[keys + g + 8]};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 old = staged(s.stage, keys + g + half * 8, column);
      sum[0][2 * half] = gain[half] * old.x, sum[0][2 * half + 1] = gain[half] * old.y, sum[1][2 * half] = gain[half] * old.z, sum[1][2 * half + 1] = gain[half] * old.w;
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) mma_bf16(sum[tile], k, u[2 + tile], 0), mma_bf16(sum[tile], k, u[tile], u[tile]);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store4(to + (keys + g + half * 8) * kD + column, make_float4(sum[0][2 * half], sum[0][2 * half + 1], sum[1][2 * half], sum[1][2 * half + 1]));
  }
}

// The fold as one update of rank `accepted`, with u as in `chunk`.
template <typename State> __device__ __forceinline__ void chunk_fold(const FoldArguments& a, int layers, int requests) {
  extern __shared__ __align__(16) uint8_t raw_shared[];
  ChunkFoldShared<State>& s = *reinterpret_cast<ChunkFoldShared<State>*>(raw_shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const unsigned turns = requests * layers * a.num_heads;
  Folded next = fetch_fold(s, a, layers, blockIdx.x, turns);
#pragma unroll 1
  for (unsigned turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    copies_wait<0>();
    __syncthreads();
    const int accepted = next.accepted;
    const bool live = accepted > 0;
    float seen[2][4] = {}, left[4] = {};
    if (live) {
      float4 log, behind;
      const float4 k = ready_operands(s.of, s.raw, accepted, 1.f, log, behind);
      store_terms(s.last_high[warp] + lane * 4, s.last_low[warp] + lane * 4, k, raised(behind, 1.f));
      if (warp == 0) add(log, behind), *reinterpret_cast<float4*>(s.end + lane * 4) = raised(log, 1.f);
      if (lane == 0) s.beta[warp] = next.beta;
      take_values(left, s.raw, accepted);
      replace_window(static_cast<BF16*>(a.conv) + s.window_at, s.ends, accepted);
    }
    __syncthreads();
    if (live) {
      multiply_pairs(s.pairs[warp], s.of);
      read_state(seen, s.of, s.stage);
    }
    __syncthreads();
    if (live) {
      float of_updates[2];
      sum_pairs(of_updates, s.pairs, false);
      const float beta = g < accepted ? s.beta[g] : 0.f;
#pragma unroll
      for (int c = 0; c < 4; ++c) left[c] -= seen[c / 2][c % 2];
#pragma unroll
      for (int row = 0; row < kMaxRows - 1; ++row) {
        const float update = __shfl_sync(~0u, of_updates[row % 2], g * 4 + row / 2);
#pragma unroll
        for (int c = 0; c < 4; ++c) left[c] -= update * __shfl_sync(~0u, beta * left[c], row * 4 + t);
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {  // columns 8 tile + 2t + i of the sixteen, where `add_updates` wants them
        uint32_t high, low;
        halves(beta * left[2 * tile], beta * left[2 * tile + 1], high, low);
        const int place = (8 * tile + 2 * t) / 4 * 2;
        *reinterpret_cast<uint32_t*>(&s.update_high[warp][t % 2][g][place]) = high, *reinterpret_cast<uint32_t*>(&s.update_low[warp][t % 2][g][place]) = low;
      }
      __syncwarp();
      add_updates(static_cast<State*>(a.state) + s.state_at, s);
    }
    __syncthreads();
    next = fetch_fold(s, a, layers, turn + gridDim.x, turns);
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
  extern "C" __global__ void __launch_bounds__(kThreads + kRowThreads, 2) kda_stream_roles_##suffix(const __grid_constant__ StepArguments a, int requests) {       \
    chunk_with_roles<State, sizeof(State) == 4 ? 1 : 2>(a, requests);                                                                             \
  }                                                                                                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads, KDA_BLOCKS) kda_stream_fold_##suffix(const __grid_constant__ FoldArguments a, int layers, int requests) { \
    fold<State>(a, layers, requests);                                                                                                             \
  }                                                                                                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads, sizeof(State) == 4 ? 2 : KDA_CHUNK_BLOCKS) kda_stream_chunk_fold_##suffix(const __grid_constant__ FoldArguments a, int layers, int requests) { \
    chunk_fold<State>(a, layers, requests);                                                                                                       \
  }

ENTRIES(f32, float)
ENTRIES(bf16, __nv_bfloat16)
