// `ring.cu`, with the exchange apart: sixteen warps mix and collapse tiles and never wait for another block; four warps beside them send the block's sums, open
// tiles and balance mixing matrices.
//
// In turn i the mixing warps mix tile i and collapse tile i - kLag; the exchanging warps send the sums of tile i and open tile i - kLag + 1, whose sums they
// asked for before. Two barriers, each in two copies that alternate, pass on what is ready: `mixed`, a warp's sums of a tile (and that it read what was
// opened kLag + 1 turns before), and `opened`, a tile's gains of the collapse (and that sums two turns before are sent, and the gains of the write-back three
// turns on are on the chip). So a mixing warp runs ahead of its neighbours and of the exchange by as much as a turn, and one that waits stops nobody.
//
// kLag <= 3 makes eight places in the ring enough: who sends tile i + 8 has opened tile i + 7 - kLag, so its group has mixed that one, opened tile
// i + 6 - 2 kLag and with it tile i.
#include "../exchange.cuh"
#include "../roles.cuh"
#include "ring.cuh"

#ifndef LAG
#define LAG 2
#endif

namespace {

constexpr int kRanks = 8, kSlice = 512, kMixing = kSlice, kExchanging = 128, kThreads = kMixing + kExchanging, kBatch = 32;
constexpr int kLag = LAG, kAhead = 5 - kLag;  // five tiles fill the shared memory
constexpr int kRing = 8, kGains = 4, kPairs = kQuads / 2, kPatience = 1 << 24;  // several seconds
constexpr int kMixingRegisters = 104, kExchangingRegisters = 64;                // of 96 that each starts with
static_assert(kLag == 2 || kLag == 3, "two copies of a barrier, eight places in the ring");

struct Shared : Tiles<kSlice, kAhead, kLag, kGains, kTokens * kValues> {
  float waiting[kBatch][25];  // tokens to be balanced: post, comb, the sum of squares
  Words norm[kSlice / 8];
  uint64_t mixed[2], opened[2];
};

struct Turns { int tiles, first, step, count; };  // of this block's group

__device__ __forceinline__ Turns turns_of(const RingArguments& a) {
  const int tiles = (a.tokens + kTokens - 1) / kTokens, first = blockIdx.x / kRanks, step = gridDim.x / kRanks;
  return {tiles, first, step, (tiles - first + step - 1) / step};
}

template <int kTerms> __device__ __forceinline__ void mix_all(const RingArguments& a, Shared& s) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int channel = blockIdx.x % kRanks * kSlice + warp * 32 + lane % 4 * 8;
  const Turns turns = turns_of(a);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < turns.count) load(a, s, turns.first + i * turns.step, i, channel);
    copies_commit();
  }
  Fragments fn;
#pragma unroll
  for (int n = 0; n < kStreams; ++n) load_fragments(fn.of[n], a, 0, n, channel, lane / 4);
  if (lane < 4) s.norm[warp * 4 + lane] = norm_gains(a, channel);
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < turns.count + kLag; ++i) {
    const int tile = turns.first + i * turns.step;
    if (i < turns.count) {
      copies_wait<kAhead - 1>();
      mix<kTerms>(a, s, fn, tile, i, channel);
    }
    __syncwarp();
    if (lane == 0) arrive(shared_address(&s.mixed[i % 2]));
    if (i >= kLag) {
      wait_here(shared_address(&s.opened[(i - kLag) % 2]), (i - kLag) / 2 % 2);
      finish(a, s, s.norm[warp * 4 + lane % 4], tile - kLag * turns.step, i - kLag, channel);
    }
    if (i + kAhead < turns.count) load(a, s, tile + kAhead * turns.step, i + kAhead, channel);
    copies_commit();
  }
}

// A pair of quads fills 32 bytes, the least that the L2 cache moves; the group's pairs of one kind lie side by side.
constexpr int kKind = kRanks * 2, kToken = kPairs * kKind, kPlaces = kTokens * kToken;

__device__ __forceinline__ uint4* places_of(const RingArguments& a, uint32_t stamp) {
  return a.ring + (blockIdx.x / kRanks * kRing + stamp % kRing) * kPlaces;
}

// The block's sums of a tile to its group: a thread sums three values over all warps.
__device__ __forceinline__ void send(const RingArguments& a, const Shared& s, int thread, int turn, uint32_t stamp) {
  if (thread >= kTokens * kQuads) return;
  const float* from = &s.partial[turn % 2][0][thread * 3];
  float sum[3] = {};
#pragma unroll
  for (int w = 0; w < kMixing / 32; ++w)
#pragma unroll
    for (int i = 0; i < 3; ++i) sum[i] += from[w * kTokens * kValues + i];
  store_whole(places_of(a, stamp) + (thread / 2 * kKind + blockIdx.x % kRanks * 2 + thread % 2),
              make_uint4(__float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]), stamp));
}

// What a warp asks of the ring for its two tokens, one each half: lane (token, c, rank) quads c, c + 2 and c + 4. For the block's own token lane (q, rank)
// asks for quads 6 + q and 10 + q % 2 besides.
struct Asked {
  uint4 most[3], rest[2];

  __device__ __forceinline__ void ask(const RingArguments& a, uint32_t stamp, int warp, int lane, bool owns) {
    const uint4* all = places_of(a, stamp) + (lane % 8 * 2 + lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < 3; ++k) most[k] = kAsks ? load_whole(all + (warp * 2 + lane / 16) * kToken + k * kKind) : uint4{};
    if (!owns) return;
    const uint4* own = all + blockIdx.x % kRanks * kToken;
    rest[0] = kAsks ? load_whole(own + (3 + lane / 16) * kKind) : uint4{};
    rest[1] = kAsks ? load_whole(own + 5 * kKind) : uint4{};
  }

  __device__ __forceinline__ bool whole(uint32_t stamp, bool owns) const {
    const bool here = most[0].w == stamp && most[1].w == stamp && most[2].w == stamp && (!owns || (rest[0].w == stamp && rest[1].w == stamp));
    return !kAwaits || __all_sync(~0u, here);
  }
};

// The sum of three values over the eight ranks, the same in all of them.
__device__ __forceinline__ void over_ranks(float* sum, const uint4& x) {
  sum[0] = __uint_as_float(x.x), sum[1] = __uint_as_float(x.y), sum[2] = __uint_as_float(x.z);
#pragma unroll
  for (int step = 1; step < 8; step *= 2)
#pragma unroll
    for (int i = 0; i < 3; ++i) sum[i] += __shfl_xor_sync(~0u, sum[i], step);
}

// Gains of the collapse of a warp's two tokens, and the place of the block's own among those to be balanced. `base` is the bias of stream `lane` % 4.
__device__ __forceinline__ void open(const RingArguments& a, Shared& s, const Asked& asked, float base, float scale, int warp, int lane, int turn,
                                     bool owns) {
  const int token = warp * 2 + lane / 16, own = blockIdx.x % kRanks, c = lane / 8 % 2;
  float v[18];  // pre 4; products 00 11 22 33 01 02 03 12 13 23; post 4
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    float mine[3];
    over_ranks(mine, asked.most[k]);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const float other = __shfl_xor_sync(~0u, mine[i], 8);
      v[k * 6 + i] = c ? other : mine[i], v[k * 6 + 3 + i] = c ? mine[i] : other;
    }
  }
  const float trace = v[4] + v[5] + v[6] + v[7];
  const float pace = inverse_root<true>(trace, kStreams * a.channels, a.norm_eps) * scale;
  const float logit = lane & 2 ? (lane & 1 ? v[3] : v[2]) : (lane & 1 ? v[1] : v[0]), part = sigmoid<true>(logit * pace + base) + a.hc_eps;
  float pre[kStreams];
#pragma unroll
  for (int n = 0; n < kStreams; ++n) pre[n] = __shfl_sync(~0u, part, n, 4);
  float norm = pre[0] * (v[8] * pre[1] + v[9] * pre[2] + v[10] * pre[3]) + pre[1] * (v[11] * pre[2] + v[12] * pre[3]) + v[13] * pre[2] * pre[3];
  norm = 2.f * norm + v[4] * pre[0] * pre[0] + v[5] * pre[1] * pre[1] + v[6] * pre[2] * pre[2] + v[7] * pre[3] * pre[3];
  if (lane % 16 == 0) {
    s.pre[turn % 2][token] = make_float4(pre[0], pre[1], pre[2], pre[3]);
    s.inverse[turn % 2][token] = inverse_root<true>(fmaxf(norm, 0.f), a.channels, a.norm_eps);
  }
  if (!owns) return;
  float* waiting = s.waiting[turn % kBatch];
  if (token == own && lane % 16 == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) waiting[i] = v[14 + i];
    waiting[24] = trace;
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    float sum[3];
    over_ranks(sum, asked.rest[k]);
    const int at = 4 + (lane / 8 + 4 * k) * 3;
#pragma unroll
    for (int i = 0; i < 3; ++i)
      if (lane % 8 == 0 && at + i < 20) waiting[at + i] = sum[i];
  }
}

__device__ __forceinline__ void exchange_all(const RingArguments& a, Shared& s) {
  const int thread = threadIdx.x - kMixing, warp = thread / 32, lane = thread % 32;
  const int own = blockIdx.x % kRanks;
  const bool owns = warp == own / 2;
  const Turns turns = turns_of(a);
#pragma unroll
  for (int i = 0; i < kGains; ++i)
    if (i < turns.count) load_gains(a, s, turns.first + i * turns.step, i, thread);
  copies_commit();
  const uint32_t begin = __ldcg(a.turns);
  const float base = a.base[lane % 4], scale = a.scale[0];
  copies_wait<0>();
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < turns.count + kLag - 1; ++i) {
    const int opening = i - kLag + 1;
    const uint32_t stamp = begin + opening;
    Asked asked;
    if (opening >= 0) asked.ask(a, stamp, warp, lane, owns);
    wait_here(shared_address(&s.mixed[i % 2]), i / 2 % 2);
    if (i + kGains < turns.count) load_gains(a, s, turns.first + (i + kGains) * turns.step, i + kGains, thread);
    copies_commit();
    if (opening >= 0 && !asked.whole(stamp, owns)) asked.ask(a, stamp, warp, lane, owns);
    if (i < turns.count) send(a, s, thread, i, begin + i);
    if (opening < 0) continue;
    for (int more = 0; !asked.whole(stamp, owns); ++more) {
      if (more == kPatience) give_up();
      asked.ask(a, stamp, warp, lane, owns);
    }
    open(a, s, asked, base, scale, warp, lane, opening, owns);
    copies_wait<2>();
    __syncwarp();
    if (lane == 0) arrive(shared_address(&s.opened[opening % 2]));
    const int place = opening % kBatch;
    if (owns && (place == kBatch - 1 || opening == turns.count - 1)) {
      if (lane <= place)
        balance<true>(a, s.waiting[lane], (turns.first + static_cast<int64_t>(opening - place + lane) * turns.step) * kTokens + own);
      __syncwarp();
    }
  }
  if (thread == 0 && atomicAdd(a.turns + 1, 1u) == gridDim.x - 1) {
    a.turns[0] = begin + (turns.tiles + turns.step - 1) / turns.step;
    a.turns[1] = 0;
  }
}

template <int kTerms> __device__ __forceinline__ void boundary(const RingArguments& a) {
  extern __shared__ __align__(128) uint8_t raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) barrier_init(shared_address(&s.mixed[i]), kMixing / 32), barrier_init(shared_address(&s.opened[i]), kExchanging / 32);
    barrier_init_fence();
  }
  if (threadIdx.x < kMixing) {
    take_registers<kMixingRegisters>();
    mix_all<kTerms>(a, s);
  } else {
    leave_registers<kExchangingRegisters>();
    exchange_all(a, s);
  }
}

}  // namespace

#define ENTRY(terms)                                                                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads, 1) mhc_apart_##terms(const __grid_constant__ RingArguments a) { boundary<terms>(a); }
ENTRY(1)
ENTRY(2)
