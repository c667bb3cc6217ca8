// The whole boundary between two sub-layers in one launch and one pass over the residual streams: 80 KB of a token cross the memory bus, and no more
// the L2 cache.
//
// Blocks work in groups of kRanks, each block on the same kSlice channels of all four streams from its group's first tile of eight tokens to its last, so
// that its share of `fn` stays in registers. A warp has 32 of the channels, lane (g, t) token g and the eight channels from 8 t on: what a thread copies, mixes
// and finishes is its own, and lies in shared memory at its own number, so tiles come in kAhead turns before they are needed without a barrier.
//
// A token's coefficients need all its channels. Each turn a block
//   mixes tile i: writes the sub-layer's output back and multiplies with `fn` and, for the norm of the row to come, the streams with each other (tensor cores);
//   sends its sums of tile i through a ring in the L2 cache, where a tag beside each three values says which tile's they are;
//   opens tile i - 1: one warp a token waits for the group's sums and makes the gains of the collapse of them;
//   finishes tile i - 2: collapses the streams that it still holds, normalises, writes.
// So sums have a whole turn to travel, and one barrier a turn is enough: what it separates is a tile's mixing from its sending, its opening from its finish.
// Mixing matrices are balanced a batch of turns at once, a token's by the block of its number: that is a long chain of short steps.
//
// Blocks wait for others of their group alone, and a group's blocks have neighbouring numbers, so all of them run as soon as there is room for kRanks.
#include <cuda_bf16.h>
#include <cstdint>

#include "../exchange.cuh"
#include "../hopper.cuh"

#ifndef RANKS
#define RANKS 8
#define AHEAD 3
#define PASSING 0
#endif

namespace {

constexpr int kStreams = 4, kRanks = RANKS, kSlice = 4096 / kRanks, kTokens = 8, kWarps = kSlice / 32, kThreads = kWarps * 32, kRows = 24, kBatch = 32;
constexpr int kAhead = AHEAD, kStages = kAhead + 2, kGains = kAhead + 1;
constexpr int kValues = 36, kQuads = kValues / 3, kOpenQuads = 5;  // a token's sums: pre 4, products of streams 10, post 4, comb 16, two of nothing
constexpr int kPitch = kTokens * kValues + 2;                      // a warp's sums; the 2 put what `send` reads at once into different banks
constexpr int kParts = kWarps / 4, kRing = 8, kPatience = 1 << 24;  // several seconds
constexpr bool kPassing = PASSING;  // streams are written as what nobody will read soon
static_assert(kRanks >= kTokens && kWarps >= kTokens && kThreads >= kTokens * kQuads * kParts, "a part each");

struct Shared {
  uint4 x[kStages][kStreams][kThreads];
  uint4 y[kAhead][kThreads];
  float partial[2][kWarps][kPitch];
  float4 gains[kGains][kTokens][5];  // post, then comb as [from][to]
  float4 pre[2][kTokens];
  float inverse[2][kTokens];
  float waiting[kBatch][25];  // tokens to be balanced: post, comb, the sum of squares
};

struct alignas(16) Words { uint32_t of[4]; };  // eight channels

__device__ __forceinline__ float2 unpack2(uint32_t word) { return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)); }
__device__ __forceinline__ uint32_t pack2(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

}  // namespace

struct RingArguments {
  const __nv_bfloat16* y;  // null: no write-back
  __nv_bfloat16* streams;
  const float *post, *comb;
  const __nv_bfloat16* fn;  // [terms][24][4 * channels]
  const float *base, *scale;
  const void* norm_weight;
  __nv_bfloat16* x;
  float *next_post, *next_comb;
  uint4* ring;      // [groups][kRing][kTokens][kRanks][kQuads]: three values and their turn
  uint32_t* turns;  // the number of this launch's first turn, which no turn before had; blocks that have ended
  int64_t y_row, streams_row;
  int tokens, channels, iters, weight_bf16;
  float hc_eps, norm_eps;
};

namespace {

// A place in rows of BF16 in units of sixteen bytes: 32 bits reach 64 GB.
__device__ __forceinline__ uint32_t place_of(uint32_t row, int64_t row_length, int channel) {
  return row * (static_cast<uint32_t>(row_length) / 8) + static_cast<uint32_t>(channel) / 8;
}

// This thread's share of a tile, and of the gains of the group's next one.
__device__ __forceinline__ void load(const RingArguments& a, Shared& s, int tile, int turn, int channel) {
  const int row = tile * kTokens + threadIdx.x % 32 / 4;
  const bool inside = row < a.tokens && channel < a.channels;
  const uint4 *streams = reinterpret_cast<const uint4*>(a.streams), *y = reinterpret_cast<const uint4*>(a.y);
  const uint32_t from = place_of(row, a.streams_row, channel), to = shared_address(&s.x[turn % kStages][0][threadIdx.x]);
#pragma unroll
  for (int n = 0; n < kStreams; ++n) copy16_near(to + n * kThreads * 16, streams + (from + n * (a.channels / 8)), inside);
  if (y != nullptr) copy16_near(shared_address(&s.y[turn % kAhead][threadIdx.x]), y + place_of(row, a.y_row, channel), inside);
}

__device__ __forceinline__ void load_gains(const RingArguments& a, Shared& s, int tile, int turn) {
  if (a.y == nullptr || threadIdx.x >= kTokens * 5) return;
  const int token = threadIdx.x / 5, part = threadIdx.x % 5;
  const int64_t row = static_cast<int64_t>(tile) * kTokens + token;
  copy16(shared_address(&s.gains[turn % kGains][token][part]), part == 0 ? a.post + row * 4 : a.comb + row * 16 + (part - 1) * 4, row < a.tokens);
}

// X'[j] = post[j] y + sum_i comb[i, j] X[i] for eight channels of one token, in place.
__device__ __forceinline__ void write_back(Words (&x)[kStreams], const Words& y, const float4 (&gains)[5]) {
  const float4 post = gains[0], c0 = gains[1], c1 = gains[2], c2 = gains[3], c3 = gains[4];
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

__device__ __forceinline__ void load_fragments(Words (&fn)[3], const RingArguments& a, int term, int n, int channel, int g) {
#pragma unroll
  for (int block = 0; block < 3; ++block)
    fn[block] = channel < a.channels ? *reinterpret_cast<const Words*>(a.fn + ((static_cast<int64_t>(term) * kRows + block * 8 + g) * kStreams + n) * a.channels + channel)
                                     : Words{};
}

// Tokens are the columns of the instruction; their order of channels is free, so a thread's eight neighbouring ones serve as two steps of sixteen.
__device__ __forceinline__ void multiply(float (&high)[4], float (&low)[4], const Words (&fn)[3], const Words& x) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    mma_bf16(high, {fn[0].of[i], fn[1].of[i], fn[0].of[i + 1], fn[1].of[i + 1]}, x.of[i], x.of[i + 1]);
    mma_bf16(low, {fn[2].of[i], 0u, fn[2].of[i + 1], 0u}, x.of[i], x.of[i + 1]);
  }
}

// Two streams times a third: a token's products stand on the diagonals. A fragment of rows and one of columns are the same words.
__device__ __forceinline__ void square(float (&d)[4], const Words& upper, const Words& lower, const Words& x) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) mma_bf16(d, {upper.of[i], lower.of[i], upper.of[i + 1], lower.of[i + 1]}, x.of[i], x.of[i + 1]);
}

// Write-back of a tile and this warp's share of its sums.
template <int kTerms> __device__ __forceinline__ void mix(const RingArguments& a, Shared& s, const Fragments& fn, int tile, int turn, int channel) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row = tile * kTokens + g;
  uint4(&mine)[kStreams][kThreads] = s.x[turn % kStages];
  Words x[kStreams];
#pragma unroll
  for (int n = 0; n < kStreams; ++n) x[n] = *reinterpret_cast<const Words*>(&mine[n][threadIdx.x]);
  if (a.y != nullptr) {
    write_back(x, *reinterpret_cast<const Words*>(&s.y[turn % kAhead][threadIdx.x]), s.gains[turn % kGains][g]);
    uint4* to = reinterpret_cast<uint4*>(a.streams);
    const uint32_t at = place_of(row, a.streams_row, channel);
#pragma unroll
    for (int n = 0; n < kStreams; ++n) mine[n][threadIdx.x] = make_uint4(x[n].of[0], x[n].of[1], x[n].of[2], x[n].of[3]);
    if (row < a.tokens && channel < a.channels)
#pragma unroll
      for (int n = 0; n < kStreams; ++n) {
        const uint4 out = make_uint4(x[n].of[0], x[n].of[1], x[n].of[2], x[n].of[3]);
        if (kPassing) __stcs(to + (at + n * (a.channels / 8)), out);
        else to[at + n * (a.channels / 8)] = out;
      }
  }
  float high[4] = {}, low[4] = {}, d[5][4] = {};
  multiply(high, low, fn.of[0], x[0]);
  square(d[0], x[0], x[1], x[0]);
  multiply(high, low, fn.of[1], x[1]);
  square(d[1], x[2], x[3], x[0]);
  square(d[2], x[1], x[2], x[1]);
  multiply(high, low, fn.of[2], x[2]);
  square(d[3], x[3], x[1], x[3]);
  multiply(high, low, fn.of[3], x[3]);
  square(d[4], x[2], x[3], x[2]);
  if constexpr (kTerms == 2) {
#pragma unroll
    for (int n = 0; n < kStreams; ++n) {
      Words rest[3];
      load_fragments(rest, a, 1, n, channel, g);
      multiply(high, low, rest, x[n]);
    }
  }
  float* sums = s.partial[turn % 2][warp];
  // the lane has coefficients g, g + 8 and g + 16 of tokens 2t and 2t + 1; all but `pre` stand ten behind
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float* of = sums + (2 * t + c) * kValues;
    of[g < 4 ? g : g + 10] = high[c];
    of[g + 18] = high[2 + c];
    of[g + 26] = low[c];
  }
  if (t != g / 2) return;
  float upper[5], lower[5];
#pragma unroll
  for (int i = 0; i < 5; ++i) upper[i] = g % 2 ? d[i][1] : d[i][0], lower[i] = g % 2 ? d[i][3] : d[i][2];
  float2* of = reinterpret_cast<float2*>(sums + g * kValues + 4);  // 00 11, 22 33, 01 02, 03 12, 13 23
  of[0] = make_float2(upper[0], upper[2]), of[1] = make_float2(upper[4], upper[3]), of[2] = make_float2(lower[0], upper[1]);
  of[3] = make_float2(lower[1], lower[2]), of[4] = make_float2(lower[3], lower[4]);
}

__device__ __forceinline__ uint4* ring_of(const RingArguments& a, uint32_t stamp, int token, int rank) {
  return a.ring + (((blockIdx.x / kRanks * kRing + stamp % kRing) * kTokens + token) * kRanks + rank) * kQuads;
}

// The block's sums of a tile to its group: a thread sums three values over four warps.
__device__ __forceinline__ void send(const RingArguments& a, const Shared& s, int turn, uint32_t stamp, int rank) {
  const int unit = threadIdx.x / kParts, part = threadIdx.x % kParts;
  if (unit >= kTokens * kQuads) return;  // whole warps
  float sum[3] = {};
#pragma unroll
  for (int w = 0; w < 4; ++w)
#pragma unroll
    for (int i = 0; i < 3; ++i) sum[i] += s.partial[turn % 2][part * 4 + w][unit * 3 + i];
#pragma unroll
  for (int step = 1; step < kParts; step *= 2)
#pragma unroll
    for (int i = 0; i < 3; ++i) sum[i] += __shfl_xor_sync(~0u, sum[i], step);
  if (part == 0)
    store_whole(ring_of(a, stamp, unit / kQuads, rank) + unit % kQuads,
                make_uint4(__float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]), stamp));
}

struct Three { float of[3]; };

// Sums over the group by a whole warp, of so many sets of four quads: lane t of four gets `quad[k]`'s. All blocks add up in the same order.
template <int kSets> __device__ __forceinline__ void gather(Three (&sum)[4], const uint4* token, const int (&quad)[4], uint32_t stamp) {
  constexpr int kEach = kRanks / 8;
  uint4 got[kSets][kEach];
  for (int asked = 0;; ++asked) {
    bool whole = true;
#pragma unroll
    for (int k = 0; k < kSets; ++k)
#pragma unroll
      for (int i = 0; i < kEach; ++i) got[k][i] = load_whole(token + (threadIdx.x % 32 / 4 + 8 * i) * kQuads + quad[k]);
#pragma unroll
    for (int k = 0; k < kSets; ++k)
#pragma unroll
      for (int i = 0; i < kEach; ++i) whole = whole && got[k][i].w == stamp;
    if (__all_sync(~0u, whole)) break;
    if (asked == kPatience) give_up();
  }
#pragma unroll
  for (int k = 0; k < kSets; ++k) {
    sum[k] = {__uint_as_float(got[k][0].x), __uint_as_float(got[k][0].y), __uint_as_float(got[k][0].z)};
#pragma unroll
    for (int i = 1; i < kEach; ++i)
      sum[k].of[0] += __uint_as_float(got[k][i].x), sum[k].of[1] += __uint_as_float(got[k][i].y), sum[k].of[2] += __uint_as_float(got[k][i].z);
#pragma unroll
    for (int step = 4; step < 32; step *= 2)
#pragma unroll
      for (int i = 0; i < 3; ++i) sum[k].of[i] += __shfl_xor_sync(~0u, sum[k].of[i], step);
  }
}

// Gains of the collapse of one token, and its place among those to be balanced if it is this block's; one warp.
__device__ __forceinline__ void open(const RingArguments& a, Shared& s, int token, int turn, uint32_t stamp, int rank) {
  const int lane = threadIdx.x % 32, t = lane % 4;
  const int quad[4] = {t, kOpenQuads - 1, kOpenQuads + t, min(kOpenQuads + 4 + t, kQuads - 1)};
  Three sum[4];
  if (token == rank) gather<4>(sum, ring_of(a, stamp, token, 0), quad, stamp);
  else gather<2>(sum, ring_of(a, stamp, token, 0), quad, stamp);
  const Three &most = sum[0], &last = sum[1];
  float v[12];  // pre 4; products 00 11 22 33 01 02 03 12
#pragma unroll
  for (int i = 0; i < 12; ++i) v[i] = __shfl_sync(~0u, most.of[i % 3], i / 3);
  const float trace = v[4] + v[5] + v[6] + v[7];
  const float root = 1.f / sqrtf(trace / static_cast<float>(kStreams * a.channels) + a.norm_eps), pace = root * a.scale[0];
  float pre[kStreams];
#pragma unroll
  for (int n = 0; n < kStreams; ++n) pre[n] = sigmoid(v[n] * pace + a.base[n]) + a.hc_eps;
  float norm = pre[0] * (v[8] * pre[1] + v[9] * pre[2] + v[10] * pre[3]) + pre[1] * (v[11] * pre[2] + last.of[0] * pre[3]) + last.of[1] * pre[2] * pre[3];
  norm = 2.f * norm + v[4] * pre[0] * pre[0] + v[5] * pre[1] * pre[1] + v[6] * pre[2] * pre[2] + v[7] * pre[3] * pre[3];
  if (lane == 0) {
    s.pre[turn % 2][token] = make_float4(pre[0], pre[1], pre[2], pre[3]);
    s.inverse[turn % 2][token] = 1.f / sqrtf(fmaxf(norm, 0.f) / static_cast<float>(a.channels) + a.norm_eps);
  }
  if (token != rank) return;
  float* waiting = s.waiting[turn % kBatch];
  if (lane == 0) waiting[0] = last.of[2], waiting[24] = trace;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = (i * 4 + t) * 3 + 1;
    if (lane < 4 && at < 20)
#pragma unroll
      for (int j = 0; j < 3; ++j) waiting[at + j] = sum[2 + i].of[j];
  }
}

// What the next boundary needs of a token, one thread each: `post`, and the mixing matrix after its Sinkhorn passes.
__device__ __forceinline__ void balance(const RingArguments& a, const Shared& s, int64_t row, int place) {
  if (row >= a.tokens) return;
  const float* sum = s.waiting[place];
  const float root = 1.f / sqrtf(sum[24] / static_cast<float>(kStreams * a.channels) + a.norm_eps);
  const float shut = root * a.scale[1], pace = root * a.scale[2];
  *reinterpret_cast<float4*>(a.next_post + row * 4) = make_float4(2.f * sigmoid(sum[0] * shut + a.base[4]), 2.f * sigmoid(sum[1] * shut + a.base[5]),
                                                                  2.f * sigmoid(sum[2] * shut + a.base[6]), 2.f * sigmoid(sum[3] * shut + a.base[7]));
  float c[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float peak = -INFINITY, total = 0.f;
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = sum[4 + i * 4 + j] * pace + a.base[8 + i * 4 + j], peak = fmaxf(peak, c[i][j]);
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = expf(c[i][j] - peak), total += c[i][j];
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = c[i][j] / total + a.hc_eps;
  }
  auto columns = [&] {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float down = fast_reciprocal((c[0][j] + c[1][j]) + (c[2][j] + c[3][j]) + a.hc_eps);
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i][j] *= down;
    }
  };
  columns();
#pragma unroll 1
  for (int pass = 1; pass < a.iters; ++pass) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float across = fast_reciprocal((c[i][0] + c[i][1]) + (c[i][2] + c[i][3]) + a.hc_eps);
#pragma unroll
      for (int j = 0; j < 4; ++j) c[i][j] *= across;
    }
    columns();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) *reinterpret_cast<float4*>(a.next_comb + row * 16 + i * 4) = make_float4(c[i][0], c[i][1], c[i][2], c[i][3]);
}

// Collapse and norm of an opened tile's eight channels of a thread.
__device__ __forceinline__ void finish(const RingArguments& a, const Shared& s, const Words& gain, int tile, int turn, int channel) {
  const int g = threadIdx.x % 32 / 4;
  const float4 pre = s.pre[turn % 2][g];
  const float inverse = s.inverse[turn % 2][g];
  Words x[kStreams];
#pragma unroll
  for (int n = 0; n < kStreams; ++n) x[n] = *reinterpret_cast<const Words*>(&s.x[turn % kStages][n][threadIdx.x]);
  uint32_t out[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const float2 x0 = unpack2(x[0].of[p]), x1 = unpack2(x[1].of[p]), x2 = unpack2(x[2].of[p]), x3 = unpack2(x[3].of[p]);
    const float2 v = unpack2(pack2(pre.x * x0.x + pre.y * x1.x + pre.z * x2.x + pre.w * x3.x, pre.x * x0.y + pre.y * x1.y + pre.z * x2.y + pre.w * x3.y));
    const float2 w = unpack2(gain.of[p]);
    out[p] = pack2(w.x * v.x * inverse, w.y * v.y * inverse);
  }
  const int row = tile * kTokens + g;
  if (row < a.tokens && channel < a.channels) reinterpret_cast<uint4*>(a.x)[place_of(row, a.channels, channel)] = make_uint4(out[0], out[1], out[2], out[3]);
}

__device__ __forceinline__ Words norm_gains(const RingArguments& a, int channel) {
  if (channel >= a.channels) return Words{};
  if (a.weight_bf16) return *reinterpret_cast<const Words*>(static_cast<const __nv_bfloat16*>(a.norm_weight) + channel);
  const float* w = static_cast<const float*>(a.norm_weight) + channel;
  return Words{{pack2(w[0], w[1]), pack2(w[2], w[3]), pack2(w[4], w[5]), pack2(w[6], w[7])}};
}

template <int kTerms> __device__ __forceinline__ void boundary(const RingArguments& a) {
  extern __shared__ __align__(128) uint8_t raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x % kRanks;
  const int tiles = (a.tokens + kTokens - 1) / kTokens, first = blockIdx.x / kRanks, step = gridDim.x / kRanks;
  const int turns = (tiles - first + step - 1) / step, opener = kWarps - kTokens;
  const int channel = rank * kSlice + warp * 32 + lane % 4 * 8;
  load_gains(a, s, first, 0);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < turns) load(a, s, first + i * step, i, channel);
    if (i + 1 < turns) load_gains(a, s, first + (i + 1) * step, i + 1);
    copies_commit();
  }
  const uint32_t begin = __ldcg(a.turns);
  Fragments fn;
#pragma unroll
  for (int n = 0; n < kStreams; ++n) load_fragments(fn.of[n], a, 0, n, channel, lane / 4);
  const Words gain = norm_gains(a, channel);
#pragma unroll 1
  for (int i = 0; i < turns + 2; ++i) {
    const int tile = first + i * step;
    if (i == 0) {  // the first gains come from other threads' copies with nothing before
      copies_wait<kAhead - 1>();
      __syncthreads();
    }
    if (i < turns) {
      copies_wait<kAhead - 1>();
      mix<kTerms>(a, s, fn, tile, i, channel);
    }
    __syncthreads();
    if (i < turns) send(a, s, i, begin + i, rank);
    if (i > 0 && i <= turns && warp >= opener) {
      const int token = warp - opener, place = (i - 1) % kBatch;
      open(a, s, token, i - 1, begin + i - 1, rank);
      if (token == rank && (place == kBatch - 1 || i == turns)) {
        __syncwarp();
        if (lane <= place) balance(a, s, (static_cast<int64_t>(tile) - static_cast<int64_t>(place - lane + 1) * step) * kTokens + rank, lane);
        __syncwarp();
      }
    }
    if (i > 1) finish(a, s, gain, tile - 2 * step, i - 2, channel);
    if (i + kAhead < turns) load(a, s, tile + kAhead * step, i + kAhead, channel);
    if (i + kAhead + 1 < turns) load_gains(a, s, tile + (kAhead + 1) * step, i + kAhead + 1);
    copies_commit();
  }
  if (threadIdx.x == 0 && atomicAdd(a.turns + 1, 1u) == gridDim.x - 1) {
    a.turns[0] = begin + (tiles + step - 1) / step;
    a.turns[1] = 0;
  }
}

}  // namespace

#define ENTRY(terms)                                                                                                                        \
  extern "C" __global__ void __launch_bounds__(kThreads, kRanks / 8) mhc_ring_##terms(const __grid_constant__ RingArguments a) { boundary<terms>(a); }
ENTRY(1)
ENTRY(2)
