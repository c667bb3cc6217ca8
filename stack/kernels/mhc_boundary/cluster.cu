// The whole boundary between two sub-layers in one launch and one pass over the residual streams, which never leave the chip half done.
//
// A cluster of eight blocks has eight tokens at a time, each block 512 of their channels in all four streams. Copies by the copy engine run two tiles ahead.
// Sixteen warps of 32 channels write the sub-layer's output back and multiply with `fn`, whose share each thread keeps in 48 registers from the first tile
// to the last: rows of `fn` are the rows of the matrix instruction, tokens its columns. The norm of the collapsed row needs no second exchange: it follows
// from the products of the streams with each other (ten a token), which are summed along with the coefficients. So blocks exchange sums once a
// tile, and while those travel the next tile is mixed. The last warp also starts the copies, and balances mixing matrices, a batch of tiles' at once: that is
// a long chain of short steps.
#include <cuda_bf16.h>
#include <cstdint>

#include "../hopper.cuh"
#include "balance.cuh"

namespace {

constexpr int kStreams = 4, kRanks = 8, kSlice = 512, kTokens = 8, kWarps = 16, kThreads = kWarps * 32, kRows = 24, kBatch = 32;
constexpr int kStages = 4, kSums = 4, kSliceBytes = kSlice * 2;
constexpr int kTokenBytes = 5 * kSliceBytes + 64;  // four streams and y; the 64 put neighbouring tokens into different banks
constexpr int kGainsAt = kTokens * kTokenBytes, kStageBytes = kGainsAt + kTokens * 80;
constexpr int kQuads = 9;         // of a token: pre; three of stream products; post; four of comb
constexpr int kSharedQuads = 4;   // of these, what every block needs
constexpr int kSumBytes = kRanks * (kTokens * kSharedQuads + kQuads - kSharedQuads) * 16;

struct Shared {
  uint8_t stage[kStages][kStageBytes];
  float4 partial[2][kWarps][kTokens][kQuads];
  float4 all[kSums][kRanks][kTokens][kSharedQuads];
  float4 own[kSums][kRanks][kQuads - kSharedQuads];  // of the token whose number is this block's
  float4 waiting[kBatch][6];  // tokens to be balanced: post, four of comb, the streams' squares
  uint64_t loaded[kStages], summed[kSums];
};
static_assert(sizeof(Shared) <= 232448 - 128, "more than a block may have");

struct alignas(16) Words { uint32_t of[4]; };  // eight channels

__device__ __forceinline__ float2 unpack2(uint32_t word) { return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&word)); }
__device__ __forceinline__ uint32_t pack2(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

}  // namespace

struct ClusterArguments {
  const __nv_bfloat16* y;  // null: no write-back
  __nv_bfloat16* streams;
  const float *post, *comb;
  const __nv_bfloat16* fn;  // [terms][24][4 * channels]
  const float *base, *scale;
  const void* norm_weight;
  __nv_bfloat16* x;
  float *next_post, *next_comb;
  int64_t y_row, streams_row;
  int tokens, channels, iters, weight_bf16;
  float hc_eps, norm_eps;
};

namespace {

// Tile `tile` of this block's channels into a stage, by one warp.
__device__ __forceinline__ void load(const ClusterArguments& a, Shared& s, int tile, int stage, int rank) {
  const int lane = threadIdx.x % 32, first = tile * kTokens, count = min(kTokens, a.tokens - first);
  const int bytes = max(0, min(kSlice, a.channels - rank * kSlice)) * 2, rows = a.y != nullptr ? 5 : 4;
  const uint32_t to = shared_address(s.stage[stage]), barrier = shared_address(&s.loaded[stage]);
  if (lane == 0) barrier_expect(barrier, count * (rows * bytes + (rows == 5 ? 80 : 0)));
  __syncwarp();
  if (bytes > 0)
    for (int i = lane; i < count * rows; i += 32) {
      const int token = i / rows, n = i % rows;
      const int64_t row = first + token;
      const __nv_bfloat16* from = (n < kStreams ? a.streams + row * a.streams_row + n * a.channels : a.y + row * a.y_row) + rank * kSlice;
      bulk_load(to + token * kTokenBytes + n * kSliceBytes, from, bytes, barrier);
    }
  if (rows == 5 && lane == 0) bulk_load(to + kGainsAt, a.post + first * 4, count * 16, barrier);
  if (rows == 5 && lane == 1) bulk_load(to + kGainsAt + kTokens * 16, a.comb + first * 16, count * 64, barrier);
}

// X'[j] = post[j] y + sum_i comb[i, j] X[i] for eight channels of one token, in place.
__device__ __forceinline__ void write_back(Words (&x)[kStreams], const Words& y, const uint8_t* gains, int token) {
  const float4 post = *reinterpret_cast<const float4*>(gains + token * 16);
  const float4* comb = reinterpret_cast<const float4*>(gains + kTokens * 16 + token * 64);
  const float4 c0 = comb[0], c1 = comb[1], c2 = comb[2], c3 = comb[3];
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

__device__ __forceinline__ void multiply(float (&high)[4], float (&low)[4], const Words (&fn)[3], const Words& x) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    mma_bf16(high, {fn[0].of[i], fn[1].of[i], fn[0].of[i + 1], fn[1].of[i + 1]}, x.of[i], x.of[i + 1]);
    mma_bf16(low, {fn[2].of[i], 0u, fn[2].of[i + 1], 0u}, x.of[i], x.of[i + 1]);
  }
}

__device__ __forceinline__ void load_fragments(Words (&fn)[3], const ClusterArguments& a, int term, int n, int channel, int g) {
#pragma unroll
  for (int block = 0; block < 3; ++block)
    fn[block] = channel < a.channels ? *reinterpret_cast<const Words*>(a.fn + ((static_cast<int64_t>(term) * kRows + block * 8 + g) * kStreams + n) * a.channels + channel)
                                     : Words{};
}

// Write-back of a tile and this warp's share of its sums.
template <int kTerms> __device__ __forceinline__ void mix(const ClusterArguments& a, Shared& s, const Fragments& fn, int tile, int stage, int parity, int channel) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t row = static_cast<int64_t>(tile) * kTokens + g;
  uint8_t* at = s.stage[stage] + g * kTokenBytes + warp * 64 + t * 16;
  Words x[kStreams];
#pragma unroll
  for (int n = 0; n < kStreams; ++n) x[n] = *reinterpret_cast<const Words*>(at + n * kSliceBytes);
  if (a.y != nullptr) {
    const Words y = *reinterpret_cast<const Words*>(at + kStreams * kSliceBytes);
    write_back(x, y, s.stage[stage] + kGainsAt, g);
    const bool inside = row < a.tokens && channel < a.channels;
#pragma unroll
    for (int n = 0; n < kStreams; ++n) {
      *reinterpret_cast<Words*>(at + n * kSliceBytes) = x[n];
      if (inside) __stcs(reinterpret_cast<uint4*>(a.streams + row * a.streams_row + n * a.channels + channel), make_uint4(x[n].of[0], x[n].of[1], x[n].of[2], x[n].of[3]));
    }
  }
  float high[4] = {}, low[4] = {};
#pragma unroll
  for (int n = 0; n < kStreams; ++n) multiply(high, low, fn.of[n], x[n]);
  if constexpr (kTerms == 2) {
#pragma unroll
    for (int n = 0; n < kStreams; ++n) {
      Words rest[3];
      load_fragments(rest, a, 1, n, channel, g);
      multiply(high, low, rest, x[n]);
    }
  }
  float product[10] = {};
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const float2 x0 = unpack2(x[0].of[p]), x1 = unpack2(x[1].of[p]), x2 = unpack2(x[2].of[p]), x3 = unpack2(x[3].of[p]);
    product[0] += x0.x * x0.x + x0.y * x0.y, product[1] += x1.x * x1.x + x1.y * x1.y, product[2] += x2.x * x2.x + x2.y * x2.y;
    product[3] += x3.x * x3.x + x3.y * x3.y, product[4] += x0.x * x1.x + x0.y * x1.y, product[5] += x0.x * x2.x + x0.y * x2.y;
    product[6] += x0.x * x3.x + x0.y * x3.y, product[7] += x1.x * x2.x + x1.y * x2.y, product[8] += x1.x * x3.x + x1.y * x3.y;
    product[9] += x2.x * x3.x + x2.y * x3.y;
  }
#pragma unroll
  for (int i = 0; i < 10; ++i) {
    product[i] += __shfl_xor_sync(~0u, product[i], 1);
    product[i] += __shfl_xor_sync(~0u, product[i], 2);
  }
  float4* mine = s.partial[parity][warp][g];
  if (t == 0) mine[1] = make_float4(product[0], product[1], product[2], product[3]);
  if (t == 1) mine[2] = make_float4(product[4], product[5], product[6], product[7]);
  if (t == 2) mine[3] = make_float4(product[8], product[9], 0.f, 0.f);
  // the lane has coefficients g, g + 8 and g + 16 of tokens 2t and 2t + 1; in a token's record post and comb stand behind the products
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float* record = reinterpret_cast<float*>(s.partial[parity][warp][2 * t + c]);
    record[g < 4 ? g : g + 12] = high[c];
    record[g + 20] = high[2 + c];
    record[g + 28] = low[c];
  }
}

// The block's sums to whom they concern: four threads a quad, each summing four warps and writing to two blocks.
__device__ __forceinline__ void send(Shared& s, int parity, int slot, int rank) {
  const int unit = threadIdx.x / 4, part = threadIdx.x % 4;
  if (unit >= kTokens * kQuads) return;  // whole warps
  const int token = unit / kQuads, quad = unit % kQuads;
  float4 sum = s.partial[parity][part * 4][token][quad];
#pragma unroll
  for (int w = 1; w < 4; ++w) sum = sum + s.partial[parity][part * 4 + w][token][quad];
#pragma unroll
  for (int step = 1; step < 4; step *= 2)
    sum = sum + make_float4(__shfl_xor_sync(~0u, sum.x, step), __shfl_xor_sync(~0u, sum.y, step), __shfl_xor_sync(~0u, sum.z, step), __shfl_xor_sync(~0u, sum.w, step));
  const uint32_t barrier = shared_address(&s.summed[slot]);
  if (quad < kSharedQuads) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t to = part * 2 + i;
      store_there(address_in(shared_address(&s.all[slot][rank][token][quad]), to), sum, address_in(barrier, to));
    }
  } else if (part == 0) {
    store_there(address_in(shared_address(&s.own[slot][rank][quad - kSharedQuads]), token), sum, address_in(barrier, token));
  }
}

// Collapse and norm of a mixed tile's eight channels of a lane.
__device__ __forceinline__ void finish(const ClusterArguments& a, const Shared& s, const Words& gain, int tile, int stage, int slot, int channel) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float4 sum = s.all[slot][0][g][t];  // t 0: pre; 1 to 3: products of streams
#pragma unroll
  for (int from = 1; from < kRanks; ++from) sum = sum + s.all[slot][from][g][t];
  const float trace = __shfl_sync(~0u, sum.x + sum.y + sum.z + sum.w, lane / 4 * 4 + 1);
  const float inverse_root = 1.f / sqrtf(trace / static_cast<float>(kStreams * a.channels) + a.norm_eps), pace = inverse_root * a.scale[0];
  float pre[kStreams];
  const float m[kStreams] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int n = 0; n < kStreams; ++n) pre[n] = sigmoid(__shfl_sync(~0u, m[n], lane / 4 * 4) * pace + a.base[n]) + a.hc_eps;
  float square = 0.f;
  if (t == 1) square = pre[0] * pre[0] * sum.x + pre[1] * pre[1] * sum.y + pre[2] * pre[2] * sum.z + pre[3] * pre[3] * sum.w;
  if (t == 2) square = 2.f * (pre[0] * (pre[1] * sum.x + pre[2] * sum.y + pre[3] * sum.z) + pre[1] * pre[2] * sum.w);
  if (t == 3) square = 2.f * (pre[1] * sum.x + pre[2] * sum.y) * pre[3];
  square += __shfl_xor_sync(~0u, square, 1);
  square += __shfl_xor_sync(~0u, square, 2);
  const float inverse = 1.f / sqrtf(fmaxf(square, 0.f) / static_cast<float>(a.channels) + a.norm_eps);
  const int64_t row = static_cast<int64_t>(tile) * kTokens + g;
  const uint8_t* at = s.stage[stage] + g * kTokenBytes + warp * 64 + t * 16;
  float2 collapsed[4] = {};
#pragma unroll
  for (int n = 0; n < kStreams; ++n) {
    const Words x = *reinterpret_cast<const Words*>(at + n * kSliceBytes);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const float2 v = unpack2(x.of[p]);
      collapsed[p].x += pre[n] * v.x, collapsed[p].y += pre[n] * v.y;
    }
  }
  uint32_t out[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const float2 v = unpack2(pack2(collapsed[p].x, collapsed[p].y)), w = unpack2(gain.of[p]);
    out[p] = pack2(w.x * v.x * inverse, w.y * v.y * inverse);
  }
  if (row < a.tokens && channel < a.channels) __stcs(reinterpret_cast<uint4*>(a.x + row * a.channels + channel), make_uint4(out[0], out[1], out[2], out[3]));
}

// The token of a tile whose number is this block's joins the batch; one lane a quad.
__device__ __forceinline__ void enlist(Shared& s, int slot, int rank, int place) {
  const int lane = threadIdx.x % 32;
  if (lane >= 6) return;
  float4 sum = lane < 5 ? s.own[slot][0][lane] : s.all[slot][0][rank][1];
#pragma unroll
  for (int from = 1; from < kRanks; ++from) sum = sum + (lane < 5 ? s.own[slot][from][lane] : s.all[slot][from][rank][1]);
  s.waiting[place][lane] = sum;
}

// What the next boundary needs of a batch's token, one thread each: `post`, and the mixing matrix after its Sinkhorn passes.
__device__ __forceinline__ void balance(const ClusterArguments& a, const Shared& s, int64_t row, int place) {
  if (row >= a.tokens) return;
  const float4 (&sum)[6] = s.waiting[place];
  const float4 square = sum[5];
  const float inverse_root = 1.f / sqrtf((square.x + square.y + square.z + square.w) / static_cast<float>(kStreams * a.channels) + a.norm_eps);
  const float open = inverse_root * a.scale[1], pace = inverse_root * a.scale[2];
  *reinterpret_cast<float4*>(a.next_post + row * 4) =
      make_float4(2.f * sigmoid(sum[0].x * open + a.base[4]), 2.f * sigmoid(sum[0].y * open + a.base[5]), 2.f * sigmoid(sum[0].z * open + a.base[6]),
                  2.f * sigmoid(sum[0].w * open + a.base[7]));
  float c[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float raw[4] = {sum[1 + i].x, sum[1 + i].y, sum[1 + i].z, sum[1 + i].w};
    float peak = -INFINITY, total = 0.f;
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = raw[j] * pace + a.base[8 + i * 4 + j], peak = fmaxf(peak, c[i][j]);
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = expf(c[i][j] - peak), total += c[i][j];
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = c[i][j] / total + a.hc_eps;
  }
  write_balanced(c, a.hc_eps, a.iters, a.next_comb + row * 16);
}

__device__ __forceinline__ Words norm_gains(const ClusterArguments& a, int channel) {
  if (channel >= a.channels) return Words{};
  if (a.weight_bf16) return *reinterpret_cast<const Words*>(static_cast<const __nv_bfloat16*>(a.norm_weight) + channel);
  const float* w = static_cast<const float*>(a.norm_weight) + channel;
  return Words{{pack2(w[0], w[1]), pack2(w[2], w[3]), pack2(w[4], w[5]), pack2(w[6], w[7])}};
}

template <int kTerms> __device__ __forceinline__ void boundary(const ClusterArguments& a) {
  extern __shared__ __align__(128) uint8_t raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = static_cast<int>(cluster_rank());
  const int tiles = (a.tokens + kTokens - 1) / kTokens, first = blockIdx.x / kRanks, step = gridDim.x / kRanks;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(shared_address(&s.loaded[i]), 1);
    for (int i = 0; i < kSums; ++i) barrier_init(shared_address(&s.summed[i]), 1);
    barrier_init_fence();
  }
  if (a.channels < (rank + 1) * kSlice)  // channels that no copy brings are zeros
    for (int i = threadIdx.x; i < kStages * kStageBytes / 16; i += kThreads) reinterpret_cast<uint4*>(s.stage)[i] = make_uint4(0, 0, 0, 0);
  proxy_fence();
  cluster_sync();
  const bool leads = warp == kWarps - 1;
  if (leads)
    for (int i = 0; i < 2; ++i)
      if (first + i * step < tiles) load(a, s, first + i * step, i, rank);
  const int channel = rank * kSlice + warp * 32 + lane % 4 * 8;
  Fragments fn;
#pragma unroll
  for (int n = 0; n < kStreams; ++n) load_fragments(fn.of[n], a, 0, n, channel, lane / 4);
  const Words gain = norm_gains(a, channel);
  int i = 0;
  for (int tile = first; tile < tiles + step; tile += step, ++i) {  // one more turn finishes the last tile
    if (tile < tiles) {
      barrier_wait(shared_address(&s.loaded[i % kStages]), i / kStages % 2);
      mix<kTerms>(a, s, fn, tile, i % kStages, i % 2, channel);
      __syncthreads();
      if (leads) {
        if (lane == 0) barrier_expect(shared_address(&s.summed[i % kSums]), kSumBytes);
        if (tile + 2 * step < tiles) load(a, s, tile + 2 * step, (i + 2) % kStages, rank);
      }
      send(s, i % 2, i % kSums, rank);
    }
    if (i == 0) continue;
    barrier_wait(shared_address(&s.summed[(i - 1) % kSums]), (i - 1) / kSums % 2);
    finish(a, s, gain, tile - step, (i - 1) % kStages, (i - 1) % kSums, channel);
    proxy_fence();  // the stage is the copy engine's next
    if (!leads) continue;
    const int place = (i - 1) % kBatch;
    enlist(s, (i - 1) % kSums, rank, place);
    __syncwarp();
    if (place == kBatch - 1 || tile >= tiles) {
      if (lane <= place) balance(a, s, (static_cast<int64_t>(tile) - static_cast<int64_t>(place - lane + 1) * step) * kTokens + rank, lane);
      __syncwarp();
    }
  }
  cluster_sync();  // no block ends while another still writes to it
}

}  // namespace

#define ENTRY(terms)                                                                          \
  extern "C" __global__ void __cluster_dims__(kRanks, 1, 1) __launch_bounds__(kThreads, 1)    \
      mhc_cluster_##terms(const __grid_constant__ ClusterArguments a) {                       \
    boundary<terms>(a);                                                                       \
  }
ENTRY(1)
ENTRY(2)
