// The whole boundary between two sub-layers in one launch and one pass over the residual streams: 80 KB of a token cross the memory bus, and no more
// the L2 cache.
//
// Blocks work in groups of kRanks, each block on the same kSlice channels of all four streams from its group's first tile of eight tokens to its last, so
// that its share of `fn` stays in registers; tiles come in AHEAD turns before they are needed.
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
#include "../exchange.cuh"
#include "ring.cuh"

#ifndef RANKS
#define RANKS 8
#define AHEAD 3
#endif
#ifndef EARLY
#define EARLY 0
#endif

namespace {

constexpr int kRanks = RANKS, kSlice = 4096 / kRanks, kWarps = kSlice / 32, kThreads = kWarps * 32, kBatch = 32;
constexpr int kPitch = kTokens * kValues + 2;                      // the 2 put what `send` reads at once into different banks
constexpr bool kEarly = EARLY;  // sums are asked for before a turn's sending and collapse, and looked at behind them
constexpr int kParts = kWarps / 4, kRing = 8, kPatience = 1 << 24;  // several seconds
static_assert(kRanks >= kTokens && kWarps >= kTokens && kThreads >= kTokens * kQuads * kParts, "a part each");

struct Shared : Tiles<kSlice, AHEAD, 2, AHEAD + 1, kPitch> {
  float waiting[kBatch][25];  // tokens to be balanced: post, comb, the sum of squares
};

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

constexpr int kEach = kRanks / 8;
struct Asked { uint4 of[4][kEach]; };

template <int kSets> __device__ __forceinline__ void ask(Asked& got, const uint4* token, const int (&quad)[4]) {
#pragma unroll
  for (int k = 0; k < kSets; ++k)
#pragma unroll
    for (int i = 0; i < kEach; ++i) got.of[k][i] = kAsks ? load_whole(token + (threadIdx.x % 32 / 4 + 8 * i) * kQuads + quad[k]) : uint4{};
}

// Sums over the group by a whole warp, of so many sets of four quads: lane t of four gets `quad[k]`'s. All blocks add up in the same order.
template <int kSets> __device__ __forceinline__ void gather(Three (&sum)[4], Asked& asked_for, const uint4* token, const int (&quad)[4], uint32_t stamp) {
  uint4(&got)[4][kEach] = asked_for.of;
  for (int asked = 0;; ++asked) {
    bool whole = true;
    if (!kEarly || asked > 0) ask<kSets>(asked_for, token, quad);
#pragma unroll
    for (int k = 0; k < kSets; ++k)
#pragma unroll
      for (int i = 0; i < kEach; ++i) whole = whole && got[k][i].w == stamp;
    if (!kAwaits || __all_sync(~0u, whole)) break;
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

struct Quads { int of[4]; };

// Where a lane's quads stand among a token's.
__device__ __forceinline__ Quads quads_of(int t) { return {{t, kOpenQuads - 1, kOpenQuads + t, min(kOpenQuads + 4 + t, kQuads - 1)}}; }

__device__ __forceinline__ void ask_early(const RingArguments& a, Asked& asked, int token, uint32_t stamp, int rank) {
  const Quads quads = quads_of(threadIdx.x % 4);
  if (token == rank) ask<4>(asked, ring_of(a, stamp, token, 0), quads.of);
  else ask<2>(asked, ring_of(a, stamp, token, 0), quads.of);
}

// Gains of the collapse of one token, and its place among those to be balanced if it is this block's; one warp.
__device__ __forceinline__ void open(const RingArguments& a, Shared& s, Asked& asked, int token, int turn, uint32_t stamp, int rank) {
  const int lane = threadIdx.x % 32, t = lane % 4;
  const Quads quads = quads_of(t);
  Three sum[4];
  if (token == rank) gather<4>(sum, asked, ring_of(a, stamp, token, 0), quads.of, stamp);
  else gather<2>(sum, asked, ring_of(a, stamp, token, 0), quads.of, stamp);
  const Three &most = sum[0], &last = sum[1];
  float v[12];  // pre 4; products 00 11 22 33 01 02 03 12
#pragma unroll
  for (int i = 0; i < 12; ++i) v[i] = __shfl_sync(~0u, most.of[i % 3], i / 3);
  const float trace = v[4] + v[5] + v[6] + v[7];
  const float root = inverse_root(trace, kStreams * a.channels, a.norm_eps), pace = root * a.scale[0];
  float pre[kStreams];
#pragma unroll
  for (int n = 0; n < kStreams; ++n) pre[n] = sigmoid(v[n] * pace + a.base[n]) + a.hc_eps;
  float norm = pre[0] * (v[8] * pre[1] + v[9] * pre[2] + v[10] * pre[3]) + pre[1] * (v[11] * pre[2] + last.of[0] * pre[3]) + last.of[1] * pre[2] * pre[3];
  norm = 2.f * norm + v[4] * pre[0] * pre[0] + v[5] * pre[1] * pre[1] + v[6] * pre[2] * pre[2] + v[7] * pre[3] * pre[3];
  if (lane == 0) {
    s.pre[turn % 2][token] = make_float4(pre[0], pre[1], pre[2], pre[3]);
    s.inverse[turn % 2][token] = inverse_root(fmaxf(norm, 0.f), a.channels, a.norm_eps);
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

template <int kTerms> __device__ __forceinline__ void boundary(const RingArguments& a) {
  extern __shared__ __align__(128) uint8_t raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x % kRanks;
  const int tiles = (a.tokens + kTokens - 1) / kTokens, first = blockIdx.x / kRanks, step = gridDim.x / kRanks;
  const int turns = (tiles - first + step - 1) / step, opener = kWarps - kTokens;
  const int channel = rank * kSlice + warp * 32 + lane % 4 * 8;
  load_gains(a, s, first, 0, threadIdx.x);
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) {
    if (i < turns) load(a, s, first + i * step, i, channel);
    if (i + 1 < turns) load_gains(a, s, first + (i + 1) * step, i + 1, threadIdx.x);
    copies_commit();
  }
  const uint32_t begin = __ldcg(a.turns);
  Fragments fn;
#pragma unroll
  for (int n = 0; n < kStreams; ++n) load_fragments(fn.of[n], a, 0, n, channel, lane / 4);
  Words gain = norm_gains(a, channel);
#pragma unroll 1
  for (int i = 0; i < turns + 2; ++i) {
    const int tile = first + i * step;
    if (i == 0) {  // the first gains come from other threads' copies with nothing before
      copies_wait<AHEAD - 1>();
      __syncthreads();
    }
    if (i < turns) {
      copies_wait<AHEAD - 1>();
      mix<kTerms>(a, s, fn, tile, i, channel);
    }
    __syncthreads();
    Asked asked;
    if (kEarly && i > 0 && i <= turns && warp >= opener) ask_early(a, asked, warp - opener, begin + i - 1, rank);
    if (i < turns) send(a, s, i, begin + i, rank);
    auto opened = [&] {
      if (i > 0 && i <= turns && warp >= opener) {
        const int token = warp - opener, place = (i - 1) % kBatch;
        open(a, s, asked, token, i - 1, begin + i - 1, rank);
        if (token == rank && (place == kBatch - 1 || i == turns)) {
          __syncwarp();
          if (lane <= place) balance(a, s.waiting[lane], (static_cast<int64_t>(tile) - static_cast<int64_t>(place - lane + 1) * step) * kTokens + rank);
          __syncwarp();
        }
      }
    };
    if (!kEarly) opened();
    if (kEarly)
#pragma unroll
      for (int p = 0; p < 4; ++p) asm volatile("" : "+r"(gain.of[p]));  // else they are unpacked ahead of the loop, into registers that are not there
    if (i > 1) finish(a, s, gain, tile - 2 * step, i - 2, channel);
    if (i + AHEAD < turns) load(a, s, tile + AHEAD * step, i + AHEAD, channel);
    if (i + AHEAD + 1 < turns) load_gains(a, s, tile + (AHEAD + 1) * step, i + AHEAD + 1, threadIdx.x);
    copies_commit();
    if (kEarly) opened();
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
