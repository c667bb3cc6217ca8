// KDA for one token, a verify's rows and the fold of accepted rows over the recurrence of `kda_rule.cuh`.
//
// Rows are prepared first, one warp a row and part (convolution, SiLU, norm or decay), into shared memory.
#include "kda_rule.cuh"

// Rows of one request for one head: convolution, SiLU, norms, decay and beta. Warp w has part w mod 4 (q, k, v, decay) of rows w / 4, w / 4 + 2, ..; all
// that it reads is in flight before the first use. The ring is written where `keep`, the window where `kAdvance`.
template <typename X, typename Conv, typename Weight, bool kAdvance>
__device__ __forceinline__ void prepare(const StepArguments& a, Row* prepared, int head, int request, int width, int slot, int entry, bool keep) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % 4, first = warp / 4;
  const int64_t part_size = static_cast<int64_t>(a.num_heads) * kD, channel = static_cast<int64_t>(head) * kD + lane * 4;
  const int64_t row0 = static_cast<int64_t>(request) * width;
  constexpr int kOwn = kAdvance ? 1 : kMaxRows / 2, kAll = kAdvance ? 1 : kMaxRows;
  if (first >= width) return;
  if (part == 3) {
    float4 f[kOwn];
    float b[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int w = first + 2 * i;
      if (w < width) {
        f[i] = load4(static_cast<const X*>(a.f) + (row0 + w) * a.f_row + head * a.f_head + lane * 4);
        b[i] = to_float(static_cast<const X*>(a.b)[(row0 + w) * a.b_row + head]);
      }
    }
    const float pace = expf(static_cast<const float*>(a.a_log)[head]);
    const float4 bias = load4(static_cast<const float*>(a.dt_bias) + channel);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int w = first + 2 * i;
      if (w >= width) break;
      const float4 log = make_float4(a.lower_bound * sigmoid(pace * (f[i].x + bias.x)), a.lower_bound * sigmoid(pace * (f[i].y + bias.y)),
                                     a.lower_bound * sigmoid(pace * (f[i].z + bias.z)), a.lower_bound * sigmoid(pace * (f[i].w + bias.w)));
      *channels(prepared[w].decay, lane) = decays(log);
      if (keep) store4(a.ring_g + entry * a.ring_g_entry + w * a.ring_g_row + channel, log);
      if (lane == 0) {
        const float beta = sigmoid(b[i]);
        prepared[w].beta = beta;
        if (keep) a.ring_beta[entry * a.ring_beta_entry + w * a.ring_beta_row + head] = beta;
      }
    }
    return;
  }
  const int64_t at = part * part_size + channel;
  Conv* window = static_cast<Conv*>(a.conv) + slot * a.conv_slot + head * a.conv_head + (part * kD + lane * 4) * 3;
  const X* x = static_cast<const X*>(a.x) + row0 * a.x_row + at;
  float inputs[kAll + 3][4];  // three of the window, then the rows
  float4 taps[4];
#pragma unroll
  for (int w = 0; w < kAll; ++w)
    if (w < width) *reinterpret_cast<float4*>(inputs[w + 3]) = load4(x + w * a.x_row);
  load_window(inputs, window);
#pragma unroll
  for (int c = 0; c < 4; ++c) taps[c] = load4(static_cast<const Weight*>(a.weight) + (at + c) * 4);
#pragma unroll
  for (int i = 0; i < kAll; ++i) {
    if (i % 2 != first && !kAdvance) continue;
    if (i >= width) break;
    float u[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float y = __fmaf_rn(inputs[i + 3][c], taps[c].w, __fmaf_rn(inputs[i + 2][c], taps[c].z, __fmaf_rn(inputs[i + 1][c], taps[c].y, __fmul_rn(inputs[i][c], taps[c].x))));
      u[c] = rounded<X>(y * sigmoid(y));
    }
    const float4 value = make_float4(u[0], u[1], u[2], u[3]);
    if (part == 2) *reinterpret_cast<float4*>(prepared[i].v + lane * 4) = value;
    else *channels(part == 0 ? prepared[i].q : prepared[i].k, lane) = normed(value, part == 0 ? a.scale : 1.f);
    if (keep) {
      store4(static_cast<Conv*>(a.ring_x) + entry * a.ring_x_entry + i * a.ring_x_row + at, make_float4(inputs[i + 3][0], inputs[i + 3][1], inputs[i + 3][2], inputs[i + 3][3]));
      if (part > 0) store4(static_cast<X*>(part == 1 ? a.ring_k : a.ring_v) + entry * a.ring_k_entry + i * a.ring_k_row + channel, value);
    }
  }
  if constexpr (kAdvance) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      float4 four;
      float* values = reinterpret_cast<float*>(&four);
#pragma unroll
      for (int j = 0; j < 4; ++j) values[j] = inputs[(i * 4 + j) % 3 + 1][(i * 4 + j) / 3];
      store4(window + i * 4, four);
    }
  }
}

// One block per (head, request). `kAdvance` writes the state and the window back; otherwise the ring is written.
template <typename X, typename State, typename Conv, typename Weight, bool kAdvance>
__device__ __forceinline__ void rows(const StepArguments& a) {
  __shared__ __align__(16) Row prepared[kAdvance ? 1 : kMaxRows];
  const int head = blockIdx.x, request = blockIdx.y, width = kAdvance ? 1 : a.width;
  const Place at_state = place();
  const int slot = a.slot[request];
  X* out = static_cast<X*>(a.out) + (static_cast<int64_t>(request) * width * a.num_heads + head) * kD + at_state.owned;
  const int64_t out_row = static_cast<int64_t>(a.num_heads) * kD;
  if (slot == 0) {
    for (int w = 0; w < width; ++w) out[w * out_row] = from_float<X>(0.f);
    return;
  }
  const int entry = kAdvance ? 0 : a.entry[request];
  const bool keep = !kAdvance && entry > 0;
  State* state = static_cast<State*>(a.state) + slot * a.state_slot + head * a.state_head;
  prefetch_state(state);
  prepare<X, Conv, Weight, kAdvance>(a, prepared, head, request, width, slot, entry, keep);
  __syncthreads();
  float s[kKeys][4];
  load_state(s, state, at_state);
#pragma unroll 1
  for (int w = 0; w < width; ++w) {
    const float o = step<true>(s, prepared[w], at_state);
    if (!at_state.twin) out[w * out_row] = from_float<X>(o);
    if (keep && a.snapshots != nullptr)
      store_state(s, static_cast<State*>(a.snapshots) + entry * a.snap_entry + w * a.snap_row + head * a.snap_head, at_state);
  }
  if constexpr (kAdvance) store_state(s, state, at_state);
}

// Four neighbouring values of a state row, as two BF16 terms (the second is zero for a BF16 state).
template <typename State> struct FourOf;
template <> struct FourOf<__nv_bfloat16> {
  static constexpr int kTerms = 1;
  uint2 raw;
  __device__ __forceinline__ void load(const __nv_bfloat16* at) { raw = *reinterpret_cast<const uint2*>(at); }
  __device__ __forceinline__ void terms(uint32_t (&t)[2][2]) const { t[0][0] = raw.x, t[0][1] = raw.y; }
  __device__ __forceinline__ float4 values() const { return widened(raw); }
};
template <> struct FourOf<float> {
  static constexpr int kTerms = 2;
  float4 raw;
  __device__ __forceinline__ void load(const float* at) { raw = *reinterpret_cast<const float4*>(at); }
  __device__ __forceinline__ void terms(uint32_t (&t)[2][2]) const { halves(raw.x, raw.y, t[0][0], t[1][0]), halves(raw.z, raw.w, t[0][1], t[1][1]); }
  __device__ __forceinline__ float4 values() const { return raw; }
};

struct ChunkShared {
  Row rows[kMaxRows];
  float keys[16][kD + 8];       // k_t E_t, then q_t E_t, E the running product of decays
  float inverse[kMaxRows][kD + 8];  // k_s / E_s
  float seen[2][16][kD + 8];    // the above times the state, by halves of the keys
  float pairs[16][8];           // k_t . k_s E_t / E_s, then q_t . k_s E_t / E_s
};

// A warp has 64 keys and 32 columns of the state, a lane columns 4g .. 4g + 3 of keys 16 step + 2t, 2t + 1, 2t + 8, 2t + 9. `state`: the lane's columns of key 0.
template <typename State> __device__ __forceinline__ void load_fragments(FourOf<State> (&fragment)[4][4], const State* state) {
  const int half = threadIdx.x / 128, t = threadIdx.x % 4;
#pragma unroll
  for (int step = 0; step < 4; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i) fragment[step][i].load(state + (half * 64 + step * 16 + t * 2 + i % 2 + 8 * (i / 2)) * kD);
}

// sums += keys S for sixteen keys, both as two BF16 terms.
template <typename State> __device__ __forceinline__ void multiply_state(float (&sums)[4][4], const uint32_t (&high)[4], const uint32_t (&low)[4], const FourOf<State> (&fragment)[4]) {
  uint32_t rows4[4][2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) fragment[i].terms(rows4[i]);
#pragma unroll
  for (int column = 0; column < 4; ++column) {
    const uint32_t select = column % 2 ? 0x7632 : 0x5410;
    const uint32_t b0 = __byte_perm(rows4[0][0][column / 2], rows4[1][0][column / 2], select), b1 = __byte_perm(rows4[2][0][column / 2], rows4[3][0][column / 2], select);
    mma_bf16(sums[column], low, b0, b1);
    if constexpr (FourOf<State>::kTerms == 2) {
      const uint32_t c0 = __byte_perm(rows4[0][1][column / 2], rows4[1][1][column / 2], select), c1 = __byte_perm(rows4[2][1][column / 2], rows4[3][1][column / 2], select);
      mma_bf16(sums[column], high, c0, c1);
    }
    mma_bf16(sums[column], high, b0, b1);
  }
}

// pair += keys inverse' for sixteen keys: column n is row s = g, which `inverse` points into.
__device__ __forceinline__ void multiply_pairs(float (&pair)[4], const uint32_t (&high)[4], const uint32_t (&low)[4], const float* inverse) {
  const float2 x = *reinterpret_cast<const float2*>(inverse), y = *reinterpret_cast<const float2*>(inverse + 8);
  uint32_t b0, b1, c0, c1;
  halves(x.x, x.y, b0, c0), halves(y.x, y.y, b1, c1);
  mma_bf16(pair, low, b0, b1), mma_bf16(pair, high, c0, c1), mma_bf16(pair, high, b0, b1);
}

// The rows of a verify at once: what they read of the state is one product of 16 x 128 by 128 x 128 on the tensor cores (operands in two BF16 terms,
// relative error 2^-16), what they read of each other a triangular recurrence of eight steps. Bits differ from stepping; the ring does not.
template <typename X, typename State, typename Conv, typename Weight>
__device__ __forceinline__ void chunk_rows(const StepArguments& a) {
  extern __shared__ __align__(16) uint8_t raw_shared[];
  ChunkShared& s = *reinterpret_cast<ChunkShared*>(raw_shared);
  const int head = blockIdx.x, request = blockIdx.y, width = a.width, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int slot = a.slot[request];
  X* out = static_cast<X*>(a.out) + (static_cast<int64_t>(request) * width * a.num_heads + head) * kD;
  const int64_t out_row = static_cast<int64_t>(a.num_heads) * kD;
  if (slot == 0) {
    for (int i = threadIdx.x; i < width * kD; i += kThreads) out[i / kD * out_row + i % kD] = from_float<X>(0.f);
    return;
  }
  const int entry = a.entry[request];
  const int half = warp / 4, first_column = warp % 4 * 32;
  const State* state = static_cast<const State*>(a.state) + slot * a.state_slot + head * a.state_head + first_column + g * 4;
  prefetch_state(static_cast<const State*>(a.state) + slot * a.state_slot + head * a.state_head);
  prepare<X, Conv, Weight, false>(a, s.rows, head, request, width, slot, entry, entry > 0);
  __syncthreads();
  if (threadIdx.x < kD) {
    const int c = threadIdx.x, at = c / 16 * kPitch + c % 16;
    float product = 1.f;
#pragma unroll
    for (int w = 0; w < kMaxRows; ++w) {
      const bool real = w < width;
      if (real) product *= s.rows[w].decay[at];
      s.keys[w][c] = real ? s.rows[w].k[at] * product : 0.f;
      s.keys[8 + w][c] = real ? s.rows[w].q[at] * product : 0.f;
      s.inverse[w][c] = real ? quotient(s.rows[w].k[at], product) : 0.f;
    }
  }
  __syncthreads();
  FourOf<State> fragment[4][4];
  load_fragments(fragment, state);
  float sums[4][4] = {}, pair[4] = {};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = *reinterpret_cast<const float2*>(&s.keys[g + 8 * (i % 2)][half * 64 + step * 16 + t * 2 + 8 * (i / 2)]);
      halves(x.x, x.y, high[i], low[i]);
    }
    multiply_state(sums, high, low, fragment[step]);
    if (warp % 4 == 0) multiply_pairs(pair, high, low, &s.inverse[g][half * 64 + step * 16 + t * 2]);  // by halves of the keys
  }
#pragma unroll
  for (int column = 0; column < 4; ++column)  // column n of this product is state column 4 n + column; the lane has n = 2t, 2t + 1
#pragma unroll
    for (int i = 0; i < 4; ++i) s.seen[half][g + 8 * (i / 2)][first_column + (t * 2 + i % 2) * 4 + column] = sums[column][i];
  if (warp == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s.pairs[g + 8 * (i / 2)][t * 2 + i % 2] = pair[i];
  }
  __syncthreads();
  if (warp == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s.pairs[g + 8 * (i / 2)][t * 2 + i % 2] += pair[i];
  }
  __syncthreads();
  if (threadIdx.x < kD) {
    const int v = threadIdx.x;
    float u[kMaxRows];
#pragma unroll
    for (int w = 0; w < kMaxRows; ++w) {
      float left = s.rows[w].v[v] - (s.seen[0][w][v] + s.seen[1][w][v]), o = s.seen[0][8 + w][v] + s.seen[1][8 + w][v];
#pragma unroll
      for (int before = 0; before < w; ++before) left -= s.pairs[w][before] * u[before], o += s.pairs[8 + w][before] * u[before];
      u[w] = w < width ? s.rows[w].beta * left : 0.f;
      if (w < width) out[w * out_row + v] = from_float<X>(o + s.pairs[8 + w][w] * u[w]);
    }
  }
}

// The window becomes the three inputs that end at the last accepted row.
template <typename Conv> __device__ __forceinline__ void move_window(const FoldArguments& a, int slot, int entry, int accepted, int head, int layer) {
  const int64_t part_size = static_cast<int64_t>(a.num_heads) * kD;
  for (int c = threadIdx.x; c < 3 * kD; c += kThreads) {
    Conv* window = static_cast<Conv*>(a.conv) + slot * a.conv_slot + head * a.conv_head + layer * a.conv_layer + c * 3;
    const Conv* x = static_cast<const Conv*>(a.ring_x) + layer * a.x_layer + entry * a.x_entry + (c / kD) * part_size + head * kD + c % kD;
    Conv next[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int from = accepted + i - 3;  // row of the verify; negative rows lie in the old window
      next[i] = from < 0 ? window[from + 3] : x[from * a.x_row];
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) window[i] = next[i];
  }
}

// One block per (head, layer, request).
template <typename X, typename State, typename Conv>
__device__ __forceinline__ void fold(const FoldArguments& a) {
  __shared__ __align__(16) Row prepared[kMaxRows];
  const int head = blockIdx.x, layer = blockIdx.y, request = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Place at_state = place();
  const int slot = a.slot[request], entry = a.entry[request], accepted = a.accepted[request];
  if (slot == 0 || entry == 0 || accepted <= 0) return;
  const int64_t channel = static_cast<int64_t>(head) * kD + lane * 4;
  State* state = static_cast<State*>(a.state) + slot * a.state_slot + head * a.state_head + layer * a.state_layer;
  float s[kKeys][4];
  if (a.snapshots != nullptr) {
    load_state(s, static_cast<const State*>(a.snapshots) + layer * a.snap_layer + entry * a.snap_entry + (accepted - 1) * a.snap_row + head * a.snap_head, at_state);
  } else {
    prefetch_state(state);
    for (int w = warp; w < accepted; w += kThreads / 32) {
      const int64_t at = layer * a.k_layer + entry * a.k_entry + w * a.k_row + channel;
      *channels(prepared[w].k, lane) = normed(load4(static_cast<const X*>(a.ring_k) + at), 1.f);
      *reinterpret_cast<float4*>(prepared[w].v + lane * 4) = load4(static_cast<const X*>(a.ring_v) + at);
      *channels(prepared[w].decay, lane) = decays(load4(a.ring_g + layer * a.g_layer + entry * a.g_entry + w * a.g_row + channel));
      if (lane == 0) prepared[w].beta = a.ring_beta[layer * a.beta_layer + entry * a.beta_entry + w * a.beta_row + head];
    }
    __syncthreads();
    load_state(s, state, at_state);
#pragma unroll 1
    for (int w = 0; w < accepted; ++w) step<false>(s, prepared[w], at_state);
  }
  store_state(s, state, at_state);
  move_window<Conv>(a, slot, entry, accepted, head, layer);
}

// The fold as one rank-`accepted` update: S <- E_a S + sum_s (k_s E_a / E_s) u_s', with u from the same product and recurrence as `chunk_rows`.
template <typename X, typename State, typename Conv>
__device__ __forceinline__ void chunk_fold(const FoldArguments& a) {
  extern __shared__ __align__(16) uint8_t raw_shared[];
  ChunkShared& s = *reinterpret_cast<ChunkShared*>(raw_shared);
  const int head = blockIdx.x, layer = blockIdx.y, request = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int slot = a.slot[request], entry = a.entry[request], accepted = a.accepted[request];
  if (slot == 0 || entry == 0 || accepted <= 0) return;
  const int64_t channel = static_cast<int64_t>(head) * kD + lane * 4;
  const int half = warp / 4, first_column = warp % 4 * 32;
  State* state = static_cast<State*>(a.state) + slot * a.state_slot + head * a.state_head + layer * a.state_layer + first_column + g * 4;
  FourOf<State> fragment[4][4];
  load_fragments(fragment, state);
  for (int w = warp; w < accepted; w += kThreads / 32) {
    const int64_t at = layer * a.k_layer + entry * a.k_entry + w * a.k_row + channel;
    *channels(s.rows[w].k, lane) = normed(load4(static_cast<const X*>(a.ring_k) + at), 1.f);
    *reinterpret_cast<float4*>(s.rows[w].v + lane * 4) = load4(static_cast<const X*>(a.ring_v) + at);
    *channels(s.rows[w].decay, lane) = decays(load4(a.ring_g + layer * a.g_layer + entry * a.g_entry + w * a.g_row + channel));
    if (lane == 0) s.rows[w].beta = a.ring_beta[layer * a.beta_layer + entry * a.beta_entry + w * a.beta_row + head];
  }
  __syncthreads();
  if (threadIdx.x < kD) {
    const int c = threadIdx.x, at = c / 16 * kPitch + c % 16;
    float product = 1.f;
#pragma unroll
    for (int w = 0; w < kMaxRows; ++w) {
      const bool real = w < accepted;
      if (real) product *= s.rows[w].decay[at];
      s.keys[w][c] = real ? s.rows[w].k[at] * product : 0.f;
      s.keys[8 + w][c] = 0.f;
      s.inverse[w][c] = real ? quotient(s.rows[w].k[at], product) : 0.f;
    }
    s.keys[8][c] = product;  // not read by the product below: rows 8 .. 15 of its left side are taken as zero
  }
  __syncthreads();
  float sums[4][4] = {}, pair[4] = {};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t high[4] = {}, low[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float2 x = *reinterpret_cast<const float2*>(&s.keys[g][half * 64 + step * 16 + t * 2 + 8 * (i / 2)]);
      halves(x.x, x.y, high[i], low[i]);
    }
    multiply_state(sums, high, low, fragment[step]);
    if (warp % 4 == 0) multiply_pairs(pair, high, low, &s.inverse[g][half * 64 + step * 16 + t * 2]);  // by halves of the keys
  }
#pragma unroll
  for (int column = 0; column < 4; ++column)
#pragma unroll
    for (int i = 0; i < 2; ++i) s.seen[half][g][first_column + (t * 2 + i) * 4 + column] = sums[column][i];
  if (warp == 4) s.pairs[g][t * 2] = pair[0], s.pairs[g][t * 2 + 1] = pair[1];
  __syncthreads();
  if (warp == 0) s.pairs[g][t * 2] += pair[0], s.pairs[g][t * 2 + 1] += pair[1];
  __syncthreads();
  if (threadIdx.x < kD) {
    const int v = threadIdx.x;
    float u[kMaxRows];
#pragma unroll
    for (int w = 0; w < kMaxRows; ++w) {
      float left = w < accepted ? s.rows[w].v[v] - (s.seen[0][w][v] + s.seen[1][w][v]) : 0.f;
#pragma unroll
      for (int before = 0; before < w; ++before) left -= s.pairs[w][before] * u[before];
      u[w] = w < accepted ? s.rows[w].beta * left : 0.f;
      s.seen[0][8 + w][v] = u[w];
    }
  }
  __syncthreads();
#pragma unroll
  for (int step = 0; step < 4; ++step)
#pragma unroll
    for (int pairs = 0; pairs < 2; ++pairs) {
      const int key = half * 64 + step * 16 + t * 2 + 8 * pairs;
      const float2 end = *reinterpret_cast<const float2*>(&s.keys[8][key]);
      float x[2][4] = {};
#pragma unroll
      for (int w = 0; w < kMaxRows; ++w) {
        const float2 k = *reinterpret_cast<const float2*>(&s.inverse[w][key]);
        const float4 u = *reinterpret_cast<const float4*>(&s.seen[0][8 + w][first_column + g * 4]);
        const float k0 = k.x * end.x, k1 = k.y * end.y;
        x[0][0] += k0 * u.x, x[0][1] += k0 * u.y, x[0][2] += k0 * u.z, x[0][3] += k0 * u.w;
        x[1][0] += k1 * u.x, x[1][1] += k1 * u.y, x[1][2] += k1 * u.z, x[1][3] += k1 * u.w;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float gain = i ? end.y : end.x;
        const float4 old = fragment[step][pairs * 2 + i].values();
        store4(state + (key + i) * kD, make_float4(gain * old.x + x[i][0], gain * old.y + x[i][1], gain * old.z + x[i][2], gain * old.w + x[i][3]));
      }
    }
  move_window<Conv>(a, slot, entry, accepted, head, layer);
}

#define ENTRIES(suffix, State, Weight)                                                                                                   \
  extern "C" __global__ void __launch_bounds__(kThreads, 2) kda_decode_##suffix(const __grid_constant__ StepArguments a) {                    \
    rows<__nv_bfloat16, State, __nv_bfloat16, Weight, true>(a);                                                                          \
  }                                                                                                                                      \
  extern "C" __global__ void __launch_bounds__(kThreads, 2) kda_verify_##suffix(const __grid_constant__ StepArguments a) {                    \
    rows<__nv_bfloat16, State, __nv_bfloat16, Weight, false>(a);                                                                         \
  }                                                                                                                                      \
  extern "C" __global__ void __launch_bounds__(kThreads, sizeof(State) == 2 ? 3 : 2) kda_verify_chunk_##suffix(const __grid_constant__ StepArguments a) {         \
    chunk_rows<__nv_bfloat16, State, __nv_bfloat16, Weight>(a);                                                                          \
  }

ENTRIES(f32, float, float)
ENTRIES(bf16, __nv_bfloat16, float)
extern "C" __global__ void __launch_bounds__(kThreads, 2) kda_fold_f32(const __grid_constant__ FoldArguments a) {
  fold<__nv_bfloat16, float, __nv_bfloat16>(a);
}
extern "C" __global__ void __launch_bounds__(kThreads, 2) kda_fold_bf16(const __grid_constant__ FoldArguments a) {
  fold<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>(a);
}
extern "C" __global__ void __launch_bounds__(kThreads, 2) kda_fold_chunk_f32(const __grid_constant__ FoldArguments a) {
  chunk_fold<__nv_bfloat16, float, __nv_bfloat16>(a);
}
extern "C" __global__ void __launch_bounds__(kThreads, 2) kda_fold_chunk_bf16(const __grid_constant__ FoldArguments a) {
  chunk_fold<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>(a);
}
