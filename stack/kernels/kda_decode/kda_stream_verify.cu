// A verify's rows over streams of states. Rows are spread first, by a launch of its own or by warps of their own, into the replay ring, from where they are
// read as a commit reads them.
//
// `spread_rows` writes what `kda_step.cu` writes, `chain` repeats its recurrence bit for bit. `chunk` is the product form.
#include "kda_stream.cuh"

namespace {

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
  load_window(before, window);
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
      fetch_row(s.raw, warp, static_cast<const BF16*>(a.ring_k) + at_k, static_cast<const BF16*>(a.ring_v) + at_k, a.ring_g + entry * a.ring_g_entry + warp * a.ring_g_row + head * kD,
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
      if (warp < width) ready_row<true>(s.rows[warp], s.raw, warp, next.beta, a.scale);
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

template <typename T> struct ChunkShared {
  using State = T;
  Stage<State, true> stage;
  RawRows raw;
  Operands<16> of;
  float pairs[kThreads / 32][16][kMaxRows];  // k_t . k_s E_t / E_s, then q_t . k_s E_t / E_s, by sixteen keys
  float beta[kMaxRows];
};

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

// Asks for the state of a turn of a verify, (request, head) in this order; the slot, or 0 where there is nothing to do.
template <typename State> __device__ __forceinline__ int fetch_state(Stage<State, true>& stage, const StepArguments& a, unsigned turn, unsigned turns) {
  const unsigned heads = a.num_heads, request = turn / heads, head = turn - request * heads;
  const int slot = turn < turns && a.entry[request] != 0 ? a.slot[request] : 0;
  if (slot != 0) stage.fetch(static_cast<const State*>(a.state) + slot * a.state_slot + head * a.state_head);
  copies_commit();
  return slot;
}

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
    barrier_init(shared_address(&s.ready[threadIdx.x]), kRowThreads / 32 * kArrivals), barrier_init(shared_address(&s.free[threadIdx.x]), kThreads / 32 * kArrivals);
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
      arrive_for_warp(shared_address(&s.ready[buffer]), lane);
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
    arrive_for_warp(shared_address(&s.free[buffer]), lane);
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
  }

ENTRIES(f32, float)
ENTRIES(bf16, __nv_bfloat16)
