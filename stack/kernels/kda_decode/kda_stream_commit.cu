// The fold of accepted rows over streams of states: `fold` repeats the recurrence of `kda_step.cu` bit for bit, `chunk_fold` is the product form.
#include "kda_stream.cuh"

namespace {

constexpr int kWindowPieces = 3 * 3 * kD / 8;  // of 16 bytes

// The ends of the convolution's inputs: the last three accepted rows, and the window that they replace.
struct Ends {
  __align__(16) BF16 inputs[3 * 3 * kD], window[3 * kD * 3];
};

// What a turn of a fold is about, (request, layer, head) in this order.
struct FoldNumbers {
  int slot, entry;
  int accepted;
  unsigned layer, head;
};

__device__ __forceinline__ FoldNumbers numbers_of(const FoldArguments& a, unsigned layers, unsigned turn, unsigned turns) {
  FoldNumbers of{0, 0, 0, 0, 0};
  if (turn < turns) {
    const unsigned heads = a.num_heads, whole = turn / heads, request = whole / layers;
    of.head = turn - whole * heads, of.layer = whole - request * layers;
    of.slot = a.slot[request], of.entry = a.entry[request];
    of.accepted = max(0, a.accepted[request]);
  }
  return of;
}

// How many rows are accepted, or 0 where there is nothing to do.
__device__ __forceinline__ int accepted_of(const FoldNumbers& of) { return of.slot != 0 && of.entry != 0 ? of.accepted : 0; }

__device__ __forceinline__ int64_t state_at(const FoldArguments& a, const FoldNumbers& of) { return of.slot * a.state_slot + of.head * a.state_head + of.layer * a.state_layer; }
__device__ __forceinline__ int64_t window_at(const FoldArguments& a, const FoldNumbers& of) { return of.slot * a.conv_slot + of.head * a.conv_head + of.layer * a.conv_layer; }

// A warp asks for row w; gives its beta.
__device__ __forceinline__ float fetch_row_of(RawRows& raw, const FoldArguments& a, const FoldNumbers& of, int w) {
  const int64_t at_k = of.layer * a.k_layer + of.entry * a.k_entry + w * a.k_row + of.head * kD;
  fetch_row(raw, w, static_cast<const BF16*>(a.ring_k) + at_k, static_cast<const BF16*>(a.ring_v) + at_k, a.ring_g + of.layer * a.g_layer + of.entry * a.g_entry + w * a.g_row + of.head * kD, nullptr);
  return a.ring_beta[of.layer * a.beta_layer + of.entry * a.beta_entry + w * a.beta_row + of.head];
}

// Asks for one of the pieces of 16 bytes that become the window.
__device__ __forceinline__ void fetch_end(Ends& ends, const FoldArguments& a, const FoldNumbers& of, int64_t window, unsigned heads, int piece) {
  const int accepted = of.accepted, row = accepted - 3 + piece / 48;
  const unsigned part = piece / 16 % 3;
  if (row >= 0)
    copy16(shared_address(ends.inputs + piece * 8), static_cast<const BF16*>(a.ring_x) + of.layer * a.x_layer + of.entry * a.x_entry + row * a.x_row + (part * heads + of.head) * kD + piece % 16 * 8, true);
  if (accepted < 3) copy16(shared_address(ends.window + piece * 8), static_cast<const BF16*>(a.conv) + window + piece * 8, true);
}

template <typename State> struct FoldShared {
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

// Asks for state, rows and ends of a turn of a fold. `ahead`: its numbers, loaded a turn before they are used, and then those of the block's next.
template <typename State>
__device__ __forceinline__ Folded fetch_fold(FoldShared<State>& s, const FoldArguments& a, unsigned layers, unsigned turn, unsigned turns, FoldNumbers& ahead) {
  const int warp = threadIdx.x / 32, piece = threadIdx.x;
  Folded asked{0, 0.f};
  if (turn < turns) {
    const unsigned heads = a.num_heads;
    const FoldNumbers of = ahead;
    ahead = numbers_of(a, layers, turn + gridDim.x, turns);
    asked.accepted = accepted_of(of);
    if (asked.accepted > 0) {
      const int64_t state = state_at(a, of), window = window_at(a, of);
      if (threadIdx.x == 0) s.state_at = state, s.window_at = window;
      s.stage.fetch(static_cast<const State*>(a.state) + state);
      if (warp < asked.accepted) asked.beta = fetch_row_of(s.raw, a, of, warp);
      if (piece < kWindowPieces) fetch_end(s.ends, a, of, window, heads, piece);
    }
  }
  copies_commit();
  return asked;
}

// The window becomes the three inputs that end at the last accepted row: by permutes where no old input stays. A thread has eight channels, three 16-byte pieces.
__device__ __forceinline__ void replace_window(BF16* window, const Ends& ends, int accepted) {
  if (threadIdx.x >= 3 * kD / 8) return;
  const int first = threadIdx.x * 8;
  if (accepted < 3) {
    const BF16* old = ends.window + accepted;
#pragma unroll 1
    for (int n = first * 3; n < first * 3 + 24; ++n) window[n] = accepted + n % 3 < 3 ? old[n] : ends.inputs[n % 3 * 3 * kD + n / 3];
    return;
  }
  uint32_t tap[3][4], words[12];  // two channels a word, then the three taps of a channel after another
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const uint4 eight = *reinterpret_cast<const uint4*>(ends.inputs + i * 3 * kD + first);
    tap[i][0] = eight.x, tap[i][1] = eight.y, tap[i][2] = eight.z, tap[i][3] = eight.w;
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    words[3 * c] = __byte_perm(tap[0][c], tap[1][c], 0x5410);
    words[3 * c + 1] = __byte_perm(tap[2][c], tap[0][c], 0x7610);
    words[3 * c + 2] = __byte_perm(tap[1][c], tap[2][c], 0x7632);
  }
#pragma unroll
  for (int i = 0; i < 3; ++i) reinterpret_cast<uint4*>(window + first * 3)[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
}

// Blocks walk over (request, layer, head).
template <typename State> __device__ __forceinline__ void fold(const FoldArguments& a, int layers, int requests) {
  extern __shared__ __align__(16) uint8_t raw_shared[];
  FoldShared<State>& s = *reinterpret_cast<FoldShared<State>*>(raw_shared);
  const int warp = threadIdx.x / 32;
  const unsigned turns = requests * layers * a.num_heads;
  const Place at = place();
  FoldNumbers ahead = numbers_of(a, layers, blockIdx.x, turns);
  Folded next = fetch_fold(s, a, layers, blockIdx.x, turns, ahead);
#pragma unroll 1
  for (unsigned turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    copies_wait<0>();
    __syncthreads();
    const int accepted = next.accepted;
    State* to = static_cast<State*>(a.state) + s.state_at;
    float state[kKeys][4];
    if (accepted > 0) {
      if (warp < accepted) ready_row<false>(s.rows[warp], s.raw, warp, next.beta, 1.f);
      s.stage.take(state, at);
      replace_window(static_cast<BF16*>(a.conv) + s.window_at, s.ends, accepted);
    }
    __syncthreads();
    next = fetch_fold(s, a, layers, turn + gridDim.x, turns, ahead);
    if (accepted == 0) continue;
#pragma unroll 1
    for (int w = 0; w < accepted; ++w) step<false>(state, s.rows[w], at);
    store_state(state, to, at);
  }
}

template <typename State> struct ChunkFoldShared {
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

// Rows become operands, `left` a warp's columns of v.
template <typename State> __device__ __forceinline__ void take_rows(float (&left)[4], ChunkFoldShared<State>& s, int accepted, float beta) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float4 log, behind;
  const float4 k = ready_operands(s.of, s.raw, accepted, 1.f, log, behind);
  store_terms(s.last_high[warp] + lane * 4, s.last_low[warp] + lane * 4, k, raised(behind, 1.f));
  if (warp == 0) add(log, behind), *reinterpret_cast<float4*>(s.end + lane * 4) = raised(log, 1.f);
  if (lane == 0) s.beta[warp] = beta;
  take_values(left, s.raw, accepted);
}

// Asks for states and rows apart from each other: for the next turn's rows as soon as this turn's are taken, before its products, for its state once this
// turn's is written. A turn's numbers are loaded a turn before they are used.
template <typename State> struct Apart {
  ChunkFoldShared<State>& s;
  const FoldArguments& a;
  const unsigned layers, turns;
  FoldNumbers of[2], ahead;  // of this turn and the two behind it
  float beta;

  __device__ __forceinline__ Folded begin() {
#pragma unroll
    for (int i = 0; i < 1; ++i) of[i] = numbers_of(a, layers, blockIdx.x + i * gridDim.x, turns);  // written as a loop, nvcc 13.0 gives the code that was timed
    ahead = numbers_of(a, layers, blockIdx.x + gridDim.x, turns);
    fetch_rows(of[0]);
    fetch_state(of[0]);
    return turn_of(of[0]);
  }

  __device__ __forceinline__ void rows_are_taken(unsigned turn) {
    const unsigned last = turn + gridDim.x;
    of[1] = ahead;
    ahead = numbers_of(a, layers, last + gridDim.x, turns);
    fetch_rows(of[1]);
  }

  __device__ __forceinline__ Folded state_is_written() {
    fetch_state(of[1]);
    of[0] = of[1];
    return turn_of(of[0]);
  }

 private:
  __device__ __forceinline__ void fetch_state(const FoldNumbers& of) {
    if (accepted_of(of) > 0) s.stage.fetch(static_cast<const State*>(a.state) + state_at(a, of));
    copies_commit();
  }
  __device__ __forceinline__ void fetch_rows(const FoldNumbers& of) {
    const int warp = threadIdx.x / 32, piece = threadIdx.x;
    if (warp < accepted_of(of)) beta = fetch_row_of(s.raw, a, of, warp);
    if (accepted_of(of) > 0 && piece < kWindowPieces) fetch_end(s.ends, a, of, window_at(a, of), a.num_heads, piece);
    copies_commit();
  }
  __device__ __forceinline__ Folded turn_of(const FoldNumbers& of) {
    if (threadIdx.x == 0) s.state_at = state_at(a, of), s.window_at = window_at(a, of);
    return Folded{accepted_of(of), beta};
  }
};

// The fold as one update of rank `accepted`.
template <typename State> __device__ __forceinline__ void chunk_fold(const FoldArguments& a, int layers, int requests) {
  extern __shared__ __align__(16) uint8_t raw_shared[];
  ChunkFoldShared<State>& s = *reinterpret_cast<ChunkFoldShared<State>*>(raw_shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const unsigned turns = requests * layers * a.num_heads;
  Apart<State> apart{s, a, static_cast<unsigned>(layers), turns};
  Folded next = apart.begin();
#pragma unroll 1
  for (unsigned turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    copies_wait<0>();
    __syncthreads();
    const int accepted = next.accepted;
    const bool live = accepted > 0;
    float seen[2][4] = {}, left[4] = {};
    if (live) {
      take_rows(left, s, accepted, next.beta);
      replace_window(static_cast<BF16*>(a.conv) + s.window_at, s.ends, accepted);
    }
    __syncthreads();
    apart.rows_are_taken(turn);
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
    next = apart.state_is_written();
  }
}

}  // namespace

#define ENTRIES(suffix, State)                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(kThreads, KDA_BLOCKS) kda_stream_fold_##suffix(const __grid_constant__ FoldArguments a, int layers, int requests) { \
    fold<State>(a, layers, requests);                                                                                                             \
  }                                                                                                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads, sizeof(State) == 4 ? 2 : KDA_CHUNK_BLOCKS) kda_stream_chunk_fold_##suffix(const __grid_constant__ FoldArguments a, int layers, int requests) { \
    chunk_fold<State>(a, layers, requests);                                                                                                       \
  }

ENTRIES(f32, float)
ENTRIES(bf16, __nv_bfloat16)
