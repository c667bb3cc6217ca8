// Everything about a chunk of 64 tokens that does not depend on the state, for one head: gates, scores, the triangular solve, W and U.
//
// With G the running sum of log2 decays inside the chunk and L[t, s] = beta_t k_t . (k_s 2^(G_t - G_s)) for s < t:
//   qg = q 2^G    kg = k 2^(G_end - G)    scores[t, s] = q_t . (k_s 2^(G_t - G_s)), s <= t    (I + L) W = beta k 2^G    (I + L) U = beta v
// A chunk is four sub-blocks of 16 tokens. Inside one, exponents stay within 16 gates, so a factor may be split between its two operands; between two,
// each operand is taken relative to the border that lies between them, and both are at most 1. The solve goes by sub-blocks, transposed, so that what
// one product leaves in registers is the next one's left operand; only the four 16 x 16 inverses are computed in FP32.
#include <cuda_bf16.h>
#include <cstdint>

#include "../hopper.cuh"

namespace {

constexpr int kD = 128, kChunk = 64, kSub = 16, kSubs = 4, kThreads = 256, kPitch = kD * 2 + 16, kLowerPitch = kChunk * 2 + 16;
constexpr float kLog2E = 1.4426950408889634f;

struct Shared {
  uint8_t q[kChunk * kPitch];       // q, then q 2^(G - border)
  uint8_t k[kChunk * kPitch];       // k, then k 2^(G - border), then beta k 2^G, then W
  uint8_t f[kChunk * kPitch];       // gates, then k 2^(border - G)
  uint8_t to_end[kChunk * kPitch];  // k 2^(G at the sub-block's end - G)
  uint8_t v[kChunk * kPitch];       // v, then beta v, then U
  uint8_t lower[kChunk * kLowerPitch];  // -L below the sub-blocks on the diagonal, BF16
  float diagonal[kSubs][kSub][20];      // L inside them
  __nv_bfloat16 inverse[kSubs][kSub][24];
  float total[kSubs][kD];  // log2 decay of a sub-block
  float beta[kChunk];
};
static_assert(2 * (sizeof(Shared) + 1024) <= 233472, "two blocks a multiprocessor");

__device__ __forceinline__ float2 unpack2(uint32_t word) { return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&word)); }
__device__ __forceinline__ uint32_t pack2(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace

struct PrepareArguments {
  const __nv_bfloat16 *q, *k, *v, *f, *b;
  const float *a_log, *dt_bias;
  __nv_bfloat16 *w, *u, *qg, *kg, *scores;
  float* ends;  // [chunks][heads][128]: G of a chunk's last token
  const int64_t *indices, *starts;
  int64_t q_row, q_head, k_row, k_head, v_row, v_head, f_row, f_head, b_row;
  int heads;
  float lower_bound;
};

namespace {

// A tile of rows; rows behind the chunk's end become zeros.
__device__ __forceinline__ void bring(uint8_t* tile, const __nv_bfloat16* from, int64_t row_stride, int rows) {
#pragma unroll
  for (int i = 0; i < kChunk * 16 / kThreads; ++i) {
    const int at = i * kThreads + threadIdx.x, row = at / 16, part = at % 16;
    copy16(shared_address(tile + row * kPitch + part * 16), from + (row < rows ? row : 0) * row_stride + part * 8, row < rows);
  }
}

// Decays, and the operands relative to the sub-block's borders. A thread has 16 tokens of two channels.
__device__ __forceinline__ void decay(const PrepareArguments& a, Shared& s, int head, int rows) {
  const int sub = threadIdx.x / 64, pair = threadIdx.x % 64, channel = pair * 2;
  const float pace = -kLog2E * expf(a.a_log[head]), scale = a.lower_bound * kLog2E;
  const float2 bias = *reinterpret_cast<const float2*>(a.dt_bias + head * kD + channel);
  float2 sum[kSub], total = make_float2(0.f, 0.f);
  uint32_t raw[kSub];
#pragma unroll
  for (int r = 0; r < kSub; ++r) {
    const int at = (sub * kSub + r) * kPitch + pair * 4;
    const float2 f = unpack2(*reinterpret_cast<const uint32_t*>(s.f + at));
    if (sub * kSub + r < rows) {
      total.x += scale * fast_reciprocal(1.f + fast_exp2(pace * (f.x + bias.x)));
      total.y += scale * fast_reciprocal(1.f + fast_exp2(pace * (f.y + bias.y)));
    }
    sum[r] = total;
    raw[r] = *reinterpret_cast<const uint32_t*>(s.k + at);
    const float2 q = unpack2(*reinterpret_cast<const uint32_t*>(s.q + at)), k = unpack2(raw[r]);
    const float2 down = make_float2(fast_exp2(total.x), fast_exp2(total.y));
    *reinterpret_cast<uint32_t*>(s.q + at) = pack2(q.x * down.x, q.y * down.y);
    *reinterpret_cast<uint32_t*>(s.k + at) = pack2(k.x * down.x, k.y * down.y);
    *reinterpret_cast<uint32_t*>(s.f + at) = pack2(k.x * fast_exp2(-total.x), k.y * fast_exp2(-total.y));
  }
#pragma unroll
  for (int r = 0; r < kSub; ++r) {
    const float2 k = unpack2(raw[r]);
    *reinterpret_cast<uint32_t*>(s.to_end + (sub * kSub + r) * kPitch + pair * 4) = pack2(k.x * fast_exp2(total.x - sum[r].x), k.y * fast_exp2(total.y - sum[r].y));
  }
  *reinterpret_cast<float2*>(&s.total[sub][channel]) = total;
}

// d[n-tile] += left (16 rows x 16 channels) times 16 rows of `right` from `row` on.
__device__ __forceinline__ void score(float (&d)[2][4], const uint32_t (&left)[4], const uint8_t* right, int row, int channel) {
  const int lane = threadIdx.x % 32;
  uint32_t b[4];  // rows 0 to 7 and 8 to 15 of channels 0 to 7, then of 8 to 15
  ldmatrix(b, shared_address(right + (row + lane % 16) * kPitch + (channel + lane / 16 * 8) * 2));
  mma_bf16(d[0], left, b[0], b[2]);
  mma_bf16(d[1], left, b[1], b[3]);
}

// Scores of a warp's sub-block of 16 rows against itself and all before it: warps 0 to 3 k with k, warps 4 to 7 q with k.
__device__ __forceinline__ void scores(const PrepareArguments& a, Shared& s, int head, int64_t first, int rows) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, sub = warp % 4;
  const bool is_query = warp >= 4;
  const uint8_t* left_tile = is_query ? s.q : s.k;
  float d[kSubs][2][4] = {};  // of the sub-block itself, the one before, ..
#pragma unroll 2
  for (int channel = 0; channel < kD; channel += 16) {
    uint32_t left[4];  // rows g and g + 8 of channels 2t, 2t + 1, then of 2t + 8, 2t + 9
    ldmatrix(left, shared_address(left_tile + (sub * kSub + lane % 16) * kPitch + (channel + lane / 16 * 8) * 2));
    score(d[0], left, s.f, sub * kSub, channel);
#pragma unroll
    for (int back = 1; back < kSubs; ++back) {
      if (back > sub) break;
      if (back > 1) {  // the sub-block in between decays as a whole
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 total = *reinterpret_cast<const float2*>(&s.total[sub - back + 1][channel + half * 8 + t * 2]);
          const float2 gain = make_float2(fast_exp2(total.x), fast_exp2(total.y));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float2 x = unpack2(left[half * 2 + i]);
            left[half * 2 + i] = pack2(x.x * gain.x, x.y * gain.y);
          }
        }
      }
      score(d[back], left, s.to_end, (sub - back) * kSub, channel);
    }
  }
#pragma unroll
  for (int back = 0; back < kSubs; ++back) {
    if (back > sub) break;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = g + 8 * i, c = tile * 8 + t * 2, row = sub * kSub + r, column = (sub - back) * kSub + c;
        const float x = d[back][tile][i * 2], y = d[back][tile][i * 2 + 1];
        if (is_query) {
          const bool first_kept = back > 0 || c <= r, second_kept = back > 0 || c + 1 <= r;
          if (row < rows)
            *reinterpret_cast<uint32_t*>(a.scores + ((first + row) * a.heads + head) * kChunk + column) = pack2(first_kept ? x : 0.f, second_kept ? y : 0.f);
        } else if (back == 0) {
          s.diagonal[sub][r][c] = s.beta[row] * x, s.diagonal[sub][r][c + 1] = s.beta[row] * y;  // read below the diagonal only
        } else {
          *reinterpret_cast<uint32_t*>(s.lower + row * kLowerPitch + column * 2) = pack2(-s.beta[row] * x, -s.beta[row] * y);
        }
      }
  }
}

// Column `column` of (I + L)^-1 for one sub-block, from the top down.
__device__ __forceinline__ void invert(Shared& s, int sub, int column) {
  float x[kSub];
#pragma unroll
  for (int r = 0; r < kSub; ++r) {
    float sum = r == column ? 1.f : 0.f;
#pragma unroll
    for (int c = 0; c < r; ++c) sum -= s.diagonal[sub][r][c] * x[c];
    x[r] = sum;
    s.inverse[sub][r][column] = __float2bfloat16(sum);
  }
}

// What is relative to a sub-block's border becomes relative to the chunk's; qg, kg and the chunk's decay leave.
__device__ __forceinline__ void extend(const PrepareArguments& a, Shared& s, int head, int64_t first, int rows) {
  const int sub = threadIdx.x / 64, pair = threadIdx.x % 64, channel = pair * 2;
  float2 before = make_float2(0.f, 0.f), after = before;
#pragma unroll
  for (int i = 0; i < kSubs; ++i) {
    const float2 total = *reinterpret_cast<const float2*>(&s.total[i][channel]);
    if (i < sub) before.x += total.x, before.y += total.y;
    if (i > sub) after.x += total.x, after.y += total.y;
  }
  if (sub == kSubs - 1) {
    const float2 last = *reinterpret_cast<const float2*>(&s.total[sub][channel]);
    *reinterpret_cast<float2*>(a.ends + (static_cast<int64_t>(blockIdx.y) * a.heads + head) * kD + channel) = make_float2(before.x + last.x, before.y + last.y);
  }
  before = make_float2(fast_exp2(before.x), fast_exp2(before.y)), after = make_float2(fast_exp2(after.x), fast_exp2(after.y));
#pragma unroll 4
  for (int r = 0; r < kSub; ++r) {
    const int row = sub * kSub + r, at = row * kPitch + pair * 4;
    const float beta = s.beta[row];
    const float2 k = unpack2(*reinterpret_cast<const uint32_t*>(s.k + at)), v = unpack2(*reinterpret_cast<const uint32_t*>(s.v + at));
    *reinterpret_cast<uint32_t*>(s.k + at) = pack2(k.x * before.x * beta, k.y * before.y * beta);
    *reinterpret_cast<uint32_t*>(s.v + at) = pack2(v.x * beta, v.y * beta);
    if (row >= rows) continue;
    const int64_t to = ((first + row) * a.heads + head) * kD + channel;
    const float2 q = unpack2(*reinterpret_cast<const uint32_t*>(s.q + at)), end = unpack2(*reinterpret_cast<const uint32_t*>(s.to_end + at));
    *reinterpret_cast<uint32_t*>(a.qg + to) = pack2(q.x * before.x, q.y * before.y);
    *reinterpret_cast<uint32_t*>(a.kg + to) = pack2(end.x * after.x, end.y * after.y);
  }
}

// W and U in place of their right sides; a warp has 32 of the 256 columns, 16 at a time, all transposed: rows of a product are columns, its columns tokens.
__device__ __forceinline__ void solve(Shared& s) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint8_t* tile = warp < 4 ? s.k : s.v;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int column = warp % 4 * 32 + part * 16;
    uint32_t solved[kSubs][4];
#pragma unroll
    for (int i = 0; i < kSubs; ++i) {
      // matrices of 8 x 8: tokens 0 to 7 of columns 0 to 7, of columns 8 to 15, then tokens 8 to 15
      const uint32_t at = shared_address(tile + (i * kSub + lane / 16 * 8 + lane % 8) * kPitch + (column + lane / 8 % 2 * 8) * 2);
      uint32_t right[4];
      ldmatrix_t(right, at);
      float d[2][4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float2 x = unpack2(right[m]);
        d[m / 2][m % 2 * 2] = x.x, d[m / 2][m % 2 * 2 + 1] = x.y;
      }
#pragma unroll
      for (int j = 0; j < i; ++j)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const uint8_t* low = s.lower + (i * kSub + n * 8 + g) * kLowerPitch + (j * kSub + t * 2) * 2;
          mma_bf16(d[n], solved[j], *reinterpret_cast<const uint32_t*>(low), *reinterpret_cast<const uint32_t*>(low + 16));
        }
      const uint32_t left[4] = {pack2(d[0][0], d[0][1]), pack2(d[0][2], d[0][3]), pack2(d[1][0], d[1][1]), pack2(d[1][2], d[1][3])};
      float x[2][4] = {};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const __nv_bfloat16* inverse = &s.inverse[i][n * 8 + g][t * 2];
        mma_bf16(x[n], left, *reinterpret_cast<const uint32_t*>(inverse), *reinterpret_cast<const uint32_t*>(inverse + 8));
      }
      solved[i][0] = pack2(x[0][0], x[0][1]), solved[i][1] = pack2(x[0][2], x[0][3]);
      solved[i][2] = pack2(x[1][0], x[1][1]), solved[i][3] = pack2(x[1][2], x[1][3]);
      stmatrix_t(at, solved[i][0], solved[i][1], solved[i][2], solved[i][3]);
    }
  }
}

__device__ __forceinline__ void leave(const uint8_t* tile, __nv_bfloat16* to, int heads, int head, int64_t first, int rows) {
#pragma unroll
  for (int i = 0; i < kChunk * 16 / kThreads; ++i) {
    const int at = i * kThreads + threadIdx.x, row = at / 16, part = at % 16;
    if (row < rows) *reinterpret_cast<uint4*>(to + ((first + row) * heads + head) * kD + part * 8) = *reinterpret_cast<const uint4*>(tile + row * kPitch + part * 16);
  }
}

}  // namespace

// One block a (head, chunk): neighbours read neighbouring bytes.
extern "C" __global__ void __launch_bounds__(kThreads, 2) kda_prepare(const __grid_constant__ PrepareArguments a) {
  extern __shared__ __align__(128) uint8_t raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const int head = blockIdx.x;
  const int64_t request = a.indices[blockIdx.y * 2LL], first = a.starts[request] + a.indices[blockIdx.y * 2LL + 1] * kChunk;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kChunk), a.starts[request + 1] - first));
  bring(s.f, a.f + first * a.f_row + head * a.f_head, a.f_row, rows);
  bring(s.k, a.k + first * a.k_row + head * a.k_head, a.k_row, rows);
  bring(s.q, a.q + first * a.q_row + head * a.q_head, a.q_row, rows);
  copies_commit();
  bring(s.v, a.v + first * a.v_row + head * a.v_head, a.v_row, rows);
  copies_commit();
  if (threadIdx.x < kChunk)
    s.beta[threadIdx.x] = static_cast<int>(threadIdx.x) < rows ? 1.f / (1.f + expf(-__bfloat162float(a.b[(first + threadIdx.x) * a.b_row + head]))) : 0.f;
  copies_wait<1>();
  __syncthreads();
  decay(a, s, head, rows);
  __syncthreads();
  scores(a, s, head, first, rows);
  copies_wait<0>();
  __syncthreads();
  if (threadIdx.x < kChunk) invert(s, threadIdx.x / kSub, threadIdx.x % kSub);
  extend(a, s, head, first, rows);
  __syncthreads();
  solve(s);
  __syncthreads();
  leave(s.k, a.w, a.heads, head, first, rows);
  leave(s.v, a.u, a.heads, head, first, rows);
}
