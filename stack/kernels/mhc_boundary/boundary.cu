// The whole boundary between two sub-layers in one pass over the residual streams: write-back, coefficients, collapse, norm.
//
// A cluster of blocks owns 16 tokens, each block 512 of their channels in all four streams, kept in shared memory from the write-back
// to the collapse, so that device memory sees every stream once in and once out. The coefficients' product runs on the tensor cores: 16 tokens are the
// rows of the instruction, a thread's eight neighbouring channels fill its fragment (their order inside a product is free), and `fn` comes as one or
// two BF16 terms. Sums cross the cluster through distributed shared memory.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cstdint>

namespace cg = cooperative_groups;

namespace {

constexpr int kStreams = 4, kTokens = 16, kSlice = 512, kThreads = 256, kWarps = 8, kRows = 24, kPadded = 25;

struct Shared {
  uint4 streams[kTokens][kStreams][kSlice / 8];  // 64 KiB, 16-byte chunks; odd tokens swap halves of eight chunks
  float partial[kWarps][kTokens][kPadded];       // coefficients' sums and, last, the sum of squares
  float mine[kTokens][kPadded];
  float square[kTokens];
  float comb[kTokens][kStreams][kStreams];  // transposed: [to][from]
  float post[kTokens][kStreams];
};

__device__ __forceinline__ void unpack(const uint4& raw, float (&x)[8]) {
  const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 f = __bfloat1622float2(pairs[i]);
    x[i * 2] = f.x, x[i * 2 + 1] = f.y;
  }
}

__device__ __forceinline__ uint4 pack(const float (&x)[8]) {
  uint4 raw;
  __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&raw);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(x[i * 2], x[i * 2 + 1]);
  return raw;
}

__device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ int chunk_at(int token, int chunk) { return chunk ^ ((token & 1) << 2); }

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffu, x, 1);
  return x + __shfl_xor_sync(0xffu, x, 2);
}

}  // namespace

struct BoundaryArguments {
  const __nv_bfloat16* y;  // null: no write-back
  __nv_bfloat16* streams;
  const float *post, *comb;
  const __nv_bfloat16* fn;  // [terms][24][4 * channels]
  const float *base, *scale;
  const void* norm_weight;
  __nv_bfloat16* x;
  float *next_post, *next_comb;
  int64_t y_row, streams_row;
  int tokens, channels, terms, iters, weight_bf16;
  float hc_eps, norm_eps;
};

template <int kCluster> __device__ __forceinline__ void boundary(const BoundaryArguments& a) {
  extern __shared__ __align__(16) uint8_t raw_shared[];
  Shared& s = *reinterpret_cast<Shared*>(raw_shared);
  cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank()), warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first_token = static_cast<int>(blockIdx.x / kCluster) * kTokens, first_channel = rank * kSlice;
  const bool writes = a.y != nullptr;

  if (writes) {
    for (int i = threadIdx.x; i < kTokens * 20; i += kThreads) {
      const int token = i / 20, at = i % 20;
      const int64_t row = first_token + token;
      const bool inside = row < a.tokens;
      if (at < 4) s.post[token][at] = inside ? a.post[row * 4 + at] : 0.f;
      else s.comb[token][(at - 4) % 4][(at - 4) / 4] = inside ? a.comb[row * 16 + at - 4] : 0.f;
    }
    __syncthreads();
  }

  float sums[3][4] = {}, square[2] = {0.f, 0.f};
#pragma unroll 1
  for (int part = 0; part < 2; ++part) {
    const int chunk = warp * 8 + part * 4 + t, channel = first_channel + chunk * 8;
    uint4 packed[2][kStreams], y_raw[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = first_token + g + 8 * r;
      const bool inside = row < a.tokens && channel < a.channels;
#pragma unroll
      for (int n = 0; n < kStreams; ++n)
        packed[r][n] = inside ? *reinterpret_cast<const uint4*>(a.streams + row * a.streams_row + n * a.channels + channel) : make_uint4(0, 0, 0, 0);
      y_raw[r] = inside && writes ? *reinterpret_cast<const uint4*>(a.y + row * a.y_row + channel) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = g + 8 * r;
      const int64_t row = first_token + token;
      if (writes) {
        float y[8], mixed[kStreams][8];
        unpack(y_raw[r], y);
#pragma unroll
        for (int to = 0; to < kStreams; ++to) {
          const float gain = s.post[token][to];
#pragma unroll
          for (int i = 0; i < 8; ++i) mixed[to][i] = gain * y[i];
        }
#pragma unroll
        for (int from = 0; from < kStreams; ++from) {
          float x[8];
          unpack(packed[r][from], x);
#pragma unroll
          for (int to = 0; to < kStreams; ++to) {
            const float gain = s.comb[token][to][from];
#pragma unroll
            for (int i = 0; i < 8; ++i) mixed[to][i] += gain * x[i];
          }
        }
#pragma unroll
        for (int n = 0; n < kStreams; ++n) {
          packed[r][n] = pack(mixed[n]);
          if (row < a.tokens && channel < a.channels) *reinterpret_cast<uint4*>(a.streams + row * a.streams_row + n * a.channels + channel) = packed[r][n];
        }
      }
#pragma unroll
      for (int n = 0; n < kStreams; ++n) {
        s.streams[token][n][chunk_at(token, chunk)] = packed[r][n];
        float x[8];
        unpack(packed[r][n], x);
#pragma unroll
        for (int i = 0; i < 8; ++i) square[r] += x[i] * x[i];
      }
    }
    for (int term = 0; term < a.terms; ++term) {
      const __nv_bfloat16* fn = a.fn + (static_cast<int64_t>(term) * kRows + g) * kStreams * a.channels + channel;
#pragma unroll
      for (int n = 0; n < kStreams; ++n)
#pragma unroll
        for (int block = 0; block < 3; ++block) {
          const uint4 b = channel < a.channels ? *reinterpret_cast<const uint4*>(fn + (static_cast<int64_t>(block) * 8 * kStreams + n) * a.channels)
                                               : make_uint4(0, 0, 0, 0);
          mma(sums[block], packed[0][n].x, packed[1][n].x, packed[0][n].y, packed[1][n].y, b.x, b.y);
          mma(sums[block], packed[0][n].z, packed[1][n].z, packed[0][n].w, packed[1][n].w, b.z, b.w);
        }
    }
  }
#pragma unroll
  for (int block = 0; block < 3; ++block)
#pragma unroll
    for (int i = 0; i < 4; ++i) s.partial[warp][g + 8 * (i / 2)][block * 8 + t * 2 + i % 2] = sums[block][i];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    square[r] += __shfl_xor_sync(~0u, square[r], 1);
    square[r] += __shfl_xor_sync(~0u, square[r], 2);
    if (t == 0) s.partial[warp][g + 8 * r][kRows] = square[r];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTokens * kPadded; i += kThreads) {
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += (&s.partial[w][0][0])[i];
    (&s.mine[0][0])[i] = total;
  }
  cluster.sync();

  // warp w finishes tokens 2w and 2w + 1 of the block's channels; lane i holds coefficient i, lane 24 the sum of squares
  float coefficient[2];
  uint4 collapsed[2][2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int token = warp * 2 + k;
    float total = 0.f;
    if (lane < kPadded)
      for (int block = 0; block < kCluster; ++block) total += *cluster.map_shared_rank(&s.mine[token][lane], block);
    const float mean = __shfl_sync(~0u, total, kRows) / static_cast<float>(kStreams * a.channels);
    total /= sqrtf(mean + a.norm_eps);
    const int kind = lane < 4 ? 0 : lane < 8 ? 1 : 2;
    coefficient[k] = lane < kRows ? total * a.scale[kind] + a.base[lane] : 0.f;
    const float open = sigmoid(coefficient[k]) + a.hc_eps;
    float pre[kStreams], peak = 0.f;
#pragma unroll
    for (int n = 0; n < kStreams; ++n) pre[n] = __shfl_sync(~0u, open, n);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f}, x[8];
#pragma unroll
      for (int n = 0; n < kStreams; ++n) {
        unpack(s.streams[token][n][chunk_at(token, half * 32 + lane)], x);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] += pre[n] * x[i];
      }
      collapsed[k][half] = pack(sum);
      unpack(collapsed[k][half], x);
#pragma unroll
      for (int i = 0; i < 8; ++i) peak += x[i] * x[i];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) peak += __shfl_xor_sync(~0u, peak, step);
    if (lane == 0) s.square[token] = peak;
  }
  cluster.sync();
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int token = warp * 2 + k;
    const int64_t row = first_token + token;
    float total = lane < kCluster ? *cluster.map_shared_rank(&s.square[token], lane) : 0.f;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);
    const float inverse = 1.f / sqrtf(total / static_cast<float>(a.channels) + a.norm_eps);
    if (row < a.tokens) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int channel = first_channel + (half * 32 + lane) * 8;
        float x[8], weight[8];
        if (channel >= a.channels) continue;
        unpack(collapsed[k][half], x);
        if (a.weight_bf16) {
          unpack(*reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(a.norm_weight) + channel), weight);
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) weight[i] = static_cast<const float*>(a.norm_weight)[channel + i];
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = weight[i] * x[i] * inverse;
        *reinterpret_cast<uint4*>(a.x + row * a.channels + channel) = pack(x);
      }
    }
  }
  // arrive: this block reads no other's memory any more. What its successors need of the coefficients is nobody's wait.
  cg::cluster_group::arrival_token token_of_arrival = cluster.barrier_arrive();
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int token = warp * 2 + k;
    const int64_t row = first_token + token;
    if (token % kCluster != rank || row >= a.tokens) continue;
    if (lane >= 4 && lane < 8) a.next_post[row * 4 + lane - 4] = 2.f * sigmoid(coefficient[k]);
    float c[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) c[j] = __shfl_sync(~0u, coefficient[k], 8 + (lane % 4) * 4 + j);
    if (lane < 8) {  // both halves do the same; a quad holds the four rows
      const float peak = fmaxf(fmaxf(c[0], c[1]), fmaxf(c[2], c[3]));
      float total = 0.f;
#pragma unroll
      for (int j = 0; j < 4; ++j) c[j] = expf(c[j] - peak), total += c[j];
#pragma unroll
      for (int j = 0; j < 4; ++j) c[j] = c[j] / total + a.hc_eps;
#pragma unroll
      for (int j = 0; j < 4; ++j) c[j] = c[j] / (quad_sum(c[j]) + a.hc_eps);
      for (int pass = 1; pass < a.iters; ++pass) {
        const float row_inverse = 1.f / (c[0] + c[1] + c[2] + c[3] + a.hc_eps);
#pragma unroll
        for (int j = 0; j < 4; ++j) c[j] *= row_inverse;
#pragma unroll
        for (int j = 0; j < 4; ++j) c[j] = c[j] / (quad_sum(c[j]) + a.hc_eps);
      }
      if (lane < 4) *reinterpret_cast<float4*>(a.next_comb + row * 16 + lane * 4) = make_float4(c[0], c[1], c[2], c[3]);
    }
    __syncwarp();
  }
  cluster.barrier_wait(std::move(token_of_arrival));
}

#define ENTRY(n)                                                                                                                   \
  extern "C" __global__ void __cluster_dims__(n, 1, 1) __launch_bounds__(kThreads, 2) mhc_boundary_##n(const __grid_constant__ BoundaryArguments a) { \
    boundary<n>(a);                                                                                                                \
  }
ENTRY(8)
ENTRY(4)
ENTRY(2)
ENTRY(1)

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
      for (int i = 0; i < 8; ++i) out[j][i] = y != nullptr ? gain[j] * x[i] : 0.f;
#pragma unroll
    for (int n = 0; n < kStreams; ++n) {
      unpack(*reinterpret_cast<const uint4*>(streams + row * streams_row + n * channels + channel), x);
#pragma unroll
      for (int j = 0; j < kStreams; ++j)
#pragma unroll
        for (int i = 0; i < 8; ++i) out[j][i] += mix[n][j] * x[i];
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
