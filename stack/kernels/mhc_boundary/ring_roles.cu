// `ring.cu`, with the exchange and all copies of tiles apart: sixteen warps mix and collapse tiles and never wait for another block; four warps beside them
// move whole rows by the copy engine, send the block's sums, open tiles and balance mixing matrices.
//
// In turn i the mixing warps mix tile i and collapse tile i - 2; the others store the rows of tile i, send its sums, ask for the rows of tile i + 2, to
// where tile i - 3 was, and open tile i - 1. Two barriers, each in two copies that alternate, pass on what is ready:
// `mixed`, a warp's sums and streams of a tile (and that it read what was opened three turns before), and `opened`, a tile's gains of the collapse (and that
// sums two turns before are sent, and the gains of the write-back three turns on are on the chip). A third, `full`, has a tile's rows. So a mixing warp runs
// ahead of its neighbours and of the exchange by as much as a turn, and one that waits stops nobody.
//
// Eight places in the ring are enough: who sends tile i + 8 has opened tile i + 5, so its group has mixed that one, opened tile i + 2 and with it tile i.
#include "../exchange.cuh"
#include "../roles.cuh"
#include "ring.cuh"

namespace {

constexpr int kRanks = 8, kSlice = 512, kMixing = kSlice, kExchanging = 128, kThreads = kMixing + kExchanging, kBatch = 32;
constexpr int kLag = 2, kNext = 2, kStages_ = 5;  // turns from mixing to collapse, and from asking for rows to mixing; five tiles fill the shared memory
constexpr int kRing = 8, kPairs = kQuads / 2, kPatience = 1 << 24;  // several seconds
constexpr int kMixingRegisters = 104, kExchangingRegisters = 64;    // of 96 that each starts with
static_assert(kStages_ == kLag + 1 + kNext, "a tile's rows go to where the one before the last collapsed was");

// Two rows of a stream, the second half a bank's turn further, so that eight lanes of two rows meet no bank twice.
struct alignas(64) RowPair {
  static constexpr int kSecond = kSlice * 2 + 64;
  uint8_t bytes[kSecond + kSlice * 2];
};

struct Shared {
  static constexpr bool kInRows = true;
  static constexpr int kThreads = kSlice, kAhead = kNext, kStages = kStages_, kGains = 4;
  RowPair x[kStages][kStreams][kTokens / 2];
  RowPair y[kAhead][kTokens / 2];

  // A mixing thread's eight channels of its token.
  static __device__ __forceinline__ int place() { return threadIdx.x % 8 / 4 * RowPair::kSecond + threadIdx.x / 32 * 64 + threadIdx.x % 4 * 16; }
  __device__ __forceinline__ uint4& x_of(int turn, int n) { return *reinterpret_cast<uint4*>(x[turn % kStages][n][threadIdx.x % 32 / 8].bytes + place()); }
  __device__ __forceinline__ const uint4& x_of(int turn, int n) const { return const_cast<Shared*>(this)->x_of(turn, n); }
  __device__ __forceinline__ const uint4& y_of(int turn) const { return *reinterpret_cast<const uint4*>(y[turn % kAhead][threadIdx.x % 32 / 8].bytes + place()); }

  float partial[2][kThreads / 32][kTokens * kValues];
  float4 gains[kGains][kTokens][5];  // post, then comb as [from][to]
  float4 pre[2][kTokens];
  float inverse[2][kTokens];
  float waiting[kBatch][25];  // tokens to be balanced: post, comb, the sum of squares
  Words norm[kSlice / 8];
  uint64_t mixed[2], opened[2], full[kStages];
};

struct Turns { int tiles, first, step, count; };  // of this block's group

__device__ __forceinline__ Turns turns_of(const RingArguments& a) {
  const int tiles = (a.tokens + kTokens - 1) / kTokens, first = blockIdx.x / kRanks, step = gridDim.x / kRanks;
  return {tiles, first, step, (tiles - first + step - 1) / step};
}

__device__ __forceinline__ uint32_t row_of(RowPair* pairs, int token) { return shared_address(pairs[token / 2].bytes + token % 2 * RowPair::kSecond); }

// The rows that a lane of an exchanging warp moves: of the warp's stream, token `lane`; of `y`, tokens 2 warp and 2 warp + 1.
struct Rows {
  int channel, bytes, warp, lane;

  __device__ __forceinline__ Rows(const RingArguments& a, int warp_, int lane_) : warp(warp_), lane(lane_) {
    channel = blockIdx.x % kRanks * kSlice;
    bytes = 2 * max(0, min(kSlice, a.channels - channel));
  }

  __device__ __forceinline__ __nv_bfloat16* streams(const RingArguments& a, int tile) const {
    return a.streams + (static_cast<int64_t>(tile) * kTokens + lane) * a.streams_row + warp * a.channels + channel;
  }

  // Whether the lane has a row among `count` of its tile from `first` on, that lies inside.
  __device__ __forceinline__ bool has(const RingArguments& a, int tile, int first, int count) const {
    return lane < count && bytes > 0 && tile * kTokens + first + lane < a.tokens;
  }

  __device__ __forceinline__ void expect(const RingArguments& a, Shared& s, int tile, int turn, int first, int count) const {
    const int rows = max(0, min(count, a.tokens - tile * kTokens - first));
    if (lane == 0) barrier_expect(shared_address(&s.full[turn % kStages_]), kLoads ? rows * bytes : 0);
    __syncwarp();
  }

  __device__ __forceinline__ void load_x(const RingArguments& a, Shared& s, int tile, int turn) const {
    expect(a, s, tile, turn, 0, kTokens);
    if (kLoads && has(a, tile, 0, kTokens)) bulk_load(row_of(s.x[turn % kStages_][warp], lane), streams(a, tile), bytes, shared_address(&s.full[turn % kStages_]));
  }

  __device__ __forceinline__ void load_y(const RingArguments& a, Shared& s, int tile, int turn) const {
    const int token = warp * 2 + lane;
    expect(a, s, tile, turn, warp * 2, a.y == nullptr ? 0 : 2);
    if (kLoads && a.y != nullptr && has(a, tile, warp * 2, 2))
      bulk_load(row_of(s.y[turn % kNext], token), a.y + (static_cast<int64_t>(tile) * kTokens + token) * a.y_row + channel, bytes, shared_address(&s.full[turn % kStages_]));
  }

  __device__ __forceinline__ void store_x(const RingArguments& a, Shared& s, int tile, int turn) const {
    if (kStores && a.y != nullptr && has(a, tile, 0, kTokens)) bulk_store(streams(a, tile), row_of(s.x[turn % kStages_][warp], lane), bytes);
    bulk_stores_commit();
  }
};

template <int kTerms> __device__ __forceinline__ void mix_all(const RingArguments& a, Shared& s) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int channel = blockIdx.x % kRanks * kSlice + warp * 32 + lane % 4 * 8;
  const Turns turns = turns_of(a);
  if (channel >= a.channels) {  // never loaded; what was in the memory is no number
    for (int i = 0; i < kStages_; ++i)
      for (int n = 0; n < kStreams; ++n) s.x_of(i, n) = uint4{};
    for (int i = 0; i < kNext; ++i) const_cast<uint4&>(s.y_of(i)) = uint4{};
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
      wait_here(shared_address(&s.full[i % kStages_]), i / kStages_ % 2);
      mix<kTerms>(a, s, fn, tile, i, channel);
      proxy_fence();
    }
    __syncwarp();
    if (lane == 0) arrive(shared_address(&s.mixed[i % 2]));
    if (i >= kLag) {
      wait_here(shared_address(&s.opened[(i - kLag) % 2]), (i - kLag) / 2 % 2);
      finish(a, s, s.norm[warp * 4 + lane % 4], tile - kLag * turns.step, i - kLag, channel);
    }
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
  const float pace = inverse_root(trace, kStreams * a.channels, a.norm_eps) * scale;
  const float logit = lane & 2 ? (lane & 1 ? v[3] : v[2]) : (lane & 1 ? v[1] : v[0]), part = sigmoid(logit * pace + base) + a.hc_eps;
  float pre[kStreams];
#pragma unroll
  for (int n = 0; n < kStreams; ++n) pre[n] = __shfl_sync(~0u, part, n, 4);
  float norm = pre[0] * (v[8] * pre[1] + v[9] * pre[2] + v[10] * pre[3]) + pre[1] * (v[11] * pre[2] + v[12] * pre[3]) + v[13] * pre[2] * pre[3];
  norm = 2.f * norm + v[4] * pre[0] * pre[0] + v[5] * pre[1] * pre[1] + v[6] * pre[2] * pre[2] + v[7] * pre[3] * pre[3];
  if (lane % 16 == 0) {
    s.pre[turn % 2][token] = make_float4(pre[0], pre[1], pre[2], pre[3]);
    s.inverse[turn % 2][token] = inverse_root(fmaxf(norm, 0.f), a.channels, a.norm_eps);
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
  const Rows rows(a, warp, lane);
  for (int i = 0; i < min(kStages_, turns.count); ++i) rows.load_x(a, s, turns.first + i * turns.step, i);
  for (int i = 0; i < min(kNext, turns.count); ++i) rows.load_y(a, s, turns.first + i * turns.step, i);
#pragma unroll
  for (int i = 0; i < Shared::kGains; ++i)
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
    wait_here(shared_address(&s.mixed[i % 2]), i / 2 % 2);
    if (i < turns.count) {
      send(a, s, thread, i, begin + i);
      rows.store_x(a, s, turns.first + i * turns.step, i);
    }
    if (const int next = i + kNext; next < turns.count) {
      const int tile = turns.first + next * turns.step;
      bulk_stores_read<kLag + 1>();
      if (next >= kStages_) rows.load_x(a, s, tile, next);
      rows.load_y(a, s, tile, next);
    }
    if (i + Shared::kGains < turns.count) load_gains(a, s, turns.first + (i + Shared::kGains) * turns.step, i + Shared::kGains, thread);
    copies_commit();
    if (opening < 0) continue;
    Asked asked;
    int more = 0;
    do {
      if (++more == kPatience) give_up();
      asked.ask(a, stamp, warp, lane, owns);
    } while (!asked.whole(stamp, owns));
    open(a, s, asked, base, scale, warp, lane, opening, owns);
    copies_wait<2>();
    __syncwarp();
    if (lane == 0) arrive(shared_address(&s.opened[opening % 2]));
    const int place = opening % kBatch;
    if (owns && (place == kBatch - 1 || opening == turns.count - 1)) {
      if (lane <= place)
        balance(a, s.waiting[lane], (turns.first + static_cast<int64_t>(opening - place + lane) * turns.step) * kTokens + own);
      __syncwarp();
    }
  }
  bulk_stores_read<0>();
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
    for (int i = 0; i < kStages_; ++i) barrier_init(shared_address(&s.full[i]), 2 * (kExchanging / 32));
    barrier_init_fence();
  }
  __syncthreads();
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
  extern "C" __global__ void __launch_bounds__(kThreads, 1) mhc_ring_roles_##terms(const __grid_constant__ RingArguments a) { boundary<terms>(a); }
ENTRY(1)
ENTRY(2)
