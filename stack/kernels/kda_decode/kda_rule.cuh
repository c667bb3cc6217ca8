// The recurrence of KDA, and what its kernels take: one source for decode, verify and commit, so that they agree bit for bit.
//
// A block of 256 threads owns one head of one request. A thread holds 16 keys x 4 columns of the state: what it reads of a row (decay, k, q) serves
// four columns, since the shared memory's bandwidth to registers, not arithmetic, is what one column a thread would run into. Lanes 4g .. 4g + 3
// hold keys 16g .. 16g + 15.
#pragma once
#include <cuda_bf16.h>
#include <cstdint>

#include "../hopper.cuh"

namespace {

constexpr int kD = 128, kKeys = 16, kPitch = 20, kMaxRows = 8, kThreads = 256;  // the pitch keeps the eight key groups in different banks

template <typename T> __device__ __forceinline__ float to_float(T x) { return static_cast<float>(x); }
template <> __device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T> __device__ __forceinline__ T from_float(float x) { return static_cast<T>(x); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float(float x) { return __float2bfloat16(x); }

// With KDA_FAST, exponentials, quotients and roots are single instructions (relative error about 2^-22). Step, verify and commit must be built alike, since
// each repeats what another has computed.
#ifdef KDA_FAST
__device__ __forceinline__ float exponential(float x) { return fast_exp2(x * 1.4426950408889634f); }
__device__ __forceinline__ float sigmoid(float x) { return fast_reciprocal(1.f + exponential(-x)); }
__device__ __forceinline__ float quotient(float x, float y) { return x * fast_reciprocal(y); }
__device__ __forceinline__ float inverse_root(float x) { return fast_rsqrt(x); }
#else
__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
__device__ __forceinline__ float quotient(float x, float y) { return x / y; }
#endif

struct Row {
  float q[8 * kPitch];
  float k[8 * kPitch];
  float decay[8 * kPitch];
  float v[kD];
  float beta;
  float unused[3];
};

__device__ __forceinline__ float4* channels(float* of, int lane) {
  return reinterpret_cast<float4*>(of + (lane / 4) * kPitch + (lane % 4) * 4);  // channels 4 lane .. 4 lane + 3
}

// Four BF16 values.
__device__ __forceinline__ float4 widened(uint2 raw) {
  const float2 a = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.x)), b = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.y));
  return make_float4(a.x, a.y, b.x, b.y);
}

template <typename T> __device__ __forceinline__ float4 load4(const T* at);
template <> __device__ __forceinline__ float4 load4(const float* at) { return *reinterpret_cast<const float4*>(at); }
template <> __device__ __forceinline__ float4 load4(const __nv_bfloat16* at) { return widened(*reinterpret_cast<const uint2*>(at)); }
template <typename T> __device__ __forceinline__ void store4(T* at, float4 x);
template <> __device__ __forceinline__ void store4(float* at, float4 x) { *reinterpret_cast<float4*>(at) = x; }
template <> __device__ __forceinline__ void store4(__nv_bfloat16* at, float4 x) {
  __nv_bfloat162 a = __floats2bfloat162_rn(x.x, x.y), b = __floats2bfloat162_rn(x.z, x.w);
  *reinterpret_cast<uint2*>(at) = make_uint2(*reinterpret_cast<uint32_t*>(&a), *reinterpret_cast<uint32_t*>(&b));
}
template <typename T> __device__ __forceinline__ float rounded(float x) { return to_float(from_float<T>(x)); }

// The three inputs of a convolution's window for four channels, earliest first: twelve neighbouring values, channel by channel.
template <typename Conv> __device__ __forceinline__ void load_window(float (*inputs)[4], const Conv* window) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const float4 four = load4(window + i * 4);
    const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) inputs[(i * 4 + j) % 3][(i * 4 + j) / 3] = values[j];
  }
}

// Sum of the squares of a head's 128 channels, one warp.
__device__ __forceinline__ float squares(float4 x) {
  float square = __fmaf_rn(x.w, x.w, __fmaf_rn(x.z, x.z, __fmaf_rn(x.y, x.y, __fmul_rn(x.x, x.x))));
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) square += __shfl_xor_sync(~0u, square, lane);
  return square;
}

// x / sqrt(the sum of squares + 1e-6)
__device__ __forceinline__ float4 normed(float4 x, float scale) {
#ifdef KDA_FAST
  const float gain = inverse_root(squares(x) + 1e-6f) * scale;
  return make_float4(x.x * gain, x.y * gain, x.z * gain, x.w * gain);
#else
  const float root = sqrtf(squares(x) + 1e-6f);
  return make_float4(x.x / root * scale, x.y / root * scale, x.z / root * scale, x.w / root * scale);
#endif
}

__device__ __forceinline__ float4 decays(float4 log) {
  return make_float4(exponential(log.x), exponential(log.y), exponential(log.z), exponential(log.w));
}

// Where a thread's part of the state lies: keys 16 group + i, columns first + j. After a sum over the keys it holds column `owned`.
struct Place {
  int group, first, owned;
  bool high, odd, twin;  // lane bits 4, 3 and 2: which columns are kept when sums are scattered over the lanes
};

__device__ __forceinline__ Place place() {
  const int lane = threadIdx.x % 32, first = (threadIdx.x / 32) * 16 + (lane % 4) * 4;
  const bool high = lane & 16, odd = lane & 8;
  return Place{lane / 4, first, first + (high ? 2 : 0) + (odd ? 1 : 0), high, odd, (lane & 4) != 0};
}

// Sum over the eight key groups; each lane gets the column that it owns.
__device__ __forceinline__ float scatter_sum(const float (&x)[4], const Place& at) {
  float a = at.high ? x[2] : x[0], b = at.high ? x[3] : x[1];
  a = __fadd_rn(a, __shfl_xor_sync(~0u, at.high ? x[0] : x[2], 16));
  b = __fadd_rn(b, __shfl_xor_sync(~0u, at.high ? x[1] : x[3], 16));
  float c = at.odd ? b : a;
  c = __fadd_rn(c, __shfl_xor_sync(~0u, at.odd ? a : b, 8));
  return __fadd_rn(c, __shfl_xor_sync(~0u, c, 4));
}

// The inverse: every lane gets all four columns.
__device__ __forceinline__ void gather_columns(float mine, const Place& at, float (&x)[4]) {
  const float near = __shfl_xor_sync(~0u, mine, 8), a = at.odd ? near : mine, b = at.odd ? mine : near;
  const float far_a = __shfl_xor_sync(~0u, a, 16), far_b = __shfl_xor_sync(~0u, b, 16);
  x[0] = at.high ? far_a : a, x[1] = at.high ? far_b : b, x[2] = at.high ? a : far_a, x[3] = at.high ? b : far_b;
}

// S <- diag(decay) S; u = beta (v - S'k); S <- S + k u; returns S'q of the owned column. Every product and sum is named, so that no two
// callers contract differently.
template <bool kOutput>
__device__ __forceinline__ float step(float (&s)[kKeys][4], const Row& row, const Place& at) {
  float k[kKeys], kv[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int i = 0; i < kKeys; i += 4) {
    const float4 d4 = *reinterpret_cast<const float4*>(row.decay + at.group * kPitch + i), k4 = *reinterpret_cast<const float4*>(row.k + at.group * kPitch + i);
    const float d[4] = {d4.x, d4.y, d4.z, d4.w};
    k[i] = k4.x, k[i + 1] = k4.y, k[i + 2] = k4.z, k[i + 3] = k4.w;
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        s[i + n][c] = __fmul_rn(s[i + n][c], d[n]);
        kv[c] = __fmaf_rn(s[i + n][c], k[i + n], kv[c]);
      }
  }
  float u[4], o[4] = {0.f, 0.f, 0.f, 0.f};
  gather_columns(__fmul_rn(row.beta, __fsub_rn(row.v[at.owned], scatter_sum(kv, at))), at, u);
#pragma unroll
  for (int i = 0; i < kKeys; i += 4) {
    float4 q4 = make_float4(0.f, 0.f, 0.f, 0.f);
    if constexpr (kOutput) q4 = *reinterpret_cast<const float4*>(row.q + at.group * kPitch + i);
    const float q[4] = {q4.x, q4.y, q4.z, q4.w};
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        s[i + n][c] = __fmaf_rn(k[i + n], u[c], s[i + n][c]);
        if constexpr (kOutput) o[c] = __fmaf_rn(s[i + n][c], q[n], o[c]);
      }
  }
  if constexpr (kOutput) return scatter_sum(o, at);
  return 0.f;
}

template <typename State> __device__ __forceinline__ void load_state(float (&s)[kKeys][4], const State* from, const Place& at) {
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const float4 x = load4(from + (at.group * kKeys + i) * kD + at.first);
    s[i][0] = x.x, s[i][1] = x.y, s[i][2] = x.z, s[i][3] = x.w;
  }
}

template <typename State> __device__ __forceinline__ void store_state(const float (&s)[kKeys][4], State* to, const Place& at) {
#pragma unroll
  for (int i = 0; i < kKeys; ++i)
    store4(to + (at.group * kKeys + i) * kD + at.first, make_float4(s[i][0], s[i][1], s[i][2], s[i][3]));
}

// The state is needed only once the rows are prepared: bring it near meanwhile, without holding registers.
template <typename State> __device__ __forceinline__ void prefetch_state(const State* at) {
  const char* bytes = reinterpret_cast<const char*>(at);
  for (int line = threadIdx.x; line < kD * kD * static_cast<int>(sizeof(State)) / 128; line += kThreads)
    prefetch_l2(bytes + line * 128);
}

// Two values as BF16, and what that drops, as BF16 again.
__device__ __forceinline__ void halves(float x, float y, uint32_t& high, uint32_t& low) {
  const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
  const float2 f = __bfloat1622float2(h);
  const __nv_bfloat162 l = __floats2bfloat162_rn(x - f.x, y - f.y);
  high = *reinterpret_cast<const uint32_t*>(&h), low = *reinterpret_cast<const uint32_t*>(&l);
}

}  // namespace

struct StepArguments {
  const void *x, *f, *b, *weight, *a_log, *dt_bias;
  void *state, *conv;
  const int *slot, *entry;
  void *ring_k, *ring_v;
  float *ring_g, *ring_beta;
  void *ring_x, *snapshots, *out;
  int64_t x_row, f_row, f_head, b_row, state_slot, state_head, conv_slot, conv_head;
  int64_t ring_k_entry, ring_k_row, ring_g_entry, ring_g_row, ring_beta_entry, ring_beta_row, ring_x_entry, ring_x_row;
  int64_t snap_entry, snap_row, snap_head;
  int width, num_heads;
  float lower_bound, scale;
};

struct FoldArguments {
  void *state, *conv;
  const void *ring_k, *ring_v;
  const float *ring_g, *ring_beta;
  const void *ring_x, *snapshots;
  const int *slot, *entry, *accepted;
  int64_t state_slot, state_head, state_layer, conv_slot, conv_head, conv_layer;
  int64_t k_layer, k_entry, k_row, g_layer, g_entry, g_row, beta_layer, beta_entry, beta_row, x_layer, x_entry, x_row;
  int64_t snap_layer, snap_entry, snap_row, snap_head;
  int num_heads;
};
