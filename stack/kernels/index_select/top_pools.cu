// Exact top-`budget` of each row's pool scores, expanded to token slots, then the open tail, then -1.
//
// One block a row. Scores become order-preserving integers. The smallest of the threads' own maxima bounds the smallest kept key from below (there are as
// many maxima as threads, and no more pools are kept than that), which spares the first histogram most of its atomics; three histogram passes
// (11, 11 and 10 bits) find the key itself, then an ordered compaction keeps everything above it and, of the equal ones, the lowest pools. A NaN sorts
// below everything. The row is staged in shared memory when it fits, and read again from global memory when it does not.
//
// Chosen pools are listed by rank first and expanded by all threads after that, one a thread.
#include <cstdint>

#include "../sortable.cuh"

namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32, kBins = 2048;

struct Shared {
  uint32_t histogram[kBins];
  uint32_t warp_sum[kWarps];
  uint32_t warp_equal[kWarps];
  uint32_t bin, above;
};

// Sum over the lanes up to this one.
__device__ __forceinline__ uint32_t sum_to_here(uint32_t x) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, x, step);
    if (lane >= step) x += other;
  }
  return x;
}

// The bin, from the top, in which the `want`-th largest lies, and how many lie above that bin.
__device__ __forceinline__ void find_bin(Shared& shared, int bins, uint32_t want) {
  const int per = bins / kThreads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = bins - 1 - static_cast<int>(threadIdx.x) * per;  // thread 0 has the top bins
  uint32_t mine = 0;
  for (int i = 0; i < per; ++i) mine += shared.histogram[first - i];
  const uint32_t scan = sum_to_here(mine);
  if (lane == 31) shared.warp_sum[warp] = scan;
  __syncthreads();
  uint32_t before = scan - mine;
  for (int i = 0; i < warp; ++i) before += shared.warp_sum[i];
  if (before < want && before + mine >= want) {
    uint32_t seen = before;
    for (int i = 0; i < per; ++i) {
      const uint32_t count = shared.histogram[first - i];
      if (seen + count >= want) {
        shared.bin = first - i;
        shared.above = seen;
        break;
      }
      seen += count;
    }
  }
  __syncthreads();
}

// Four neighbouring keys of the row; behind its end, zeros.
template <bool kStaged> __device__ __forceinline__ uint4 keys_at(const uint32_t* keys, const float* from, int at, int pools) {
  if constexpr (kStaged) return *reinterpret_cast<const uint4*>(keys + at);
  const float4 x = *reinterpret_cast<const float4*>(from + at);
  return make_uint4(sortable(x.x), at + 1 < pools ? sortable(x.y) : 0u, at + 2 < pools ? sortable(x.z) : 0u, at + 3 < pools ? sortable(x.w) : 0u);
}

template <typename F> __device__ __forceinline__ void each(const uint4& four, F&& f) { f(four.x), f(four.y), f(four.z), f(four.w); }

// Calls `write(rank, pool)` for each of the `budget` best pools, ranks in order of pools.
template <bool kStaged, typename Write>
__device__ __forceinline__ void select(uint32_t* keys, const float* from, int pools, int budget, Shared& shared, Write&& write) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t peak = 0;
  for (int i = threadIdx.x * 4; i < pools; i += kThreads * 4) {
    const uint4 four = keys_at<false>(nullptr, from, i, pools);
    if constexpr (kStaged) *reinterpret_cast<uint4*>(keys + i) = four;
    peak = max(max(peak, max(four.x, four.y)), max(four.z, four.w));
  }
  for (int i = threadIdx.x; i < kBins; i += kThreads) shared.histogram[i] = 0;
  peak = __reduce_min_sync(~0u, peak);
  if (lane == 0) shared.warp_sum[warp] = peak;
  __syncthreads();
  uint32_t floor = budget <= kThreads ? 0xffffffffu : 0u;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) floor = min(floor, shared.warp_sum[i]);
  for (int i = threadIdx.x * 4; i < pools; i += kThreads * 4) {
    const int left = pools - i;
    int at = 0;
    each(keys_at<kStaged>(keys, from, i, pools), [&](uint32_t key) {
      if (key >= floor && at < left) atomicAdd(&shared.histogram[key >> 21], 1u);
      ++at;
    });
  }
  __syncthreads();
  uint32_t want = budget, prefix;
  find_bin(shared, kBins, want);
  prefix = shared.bin;
  want -= shared.above;
#pragma unroll
  for (int pass = 1; pass < 3; ++pass) {
    const int shift = pass == 1 ? 10 : 0, bins = pass == 1 ? 2048 : 1024;
    for (int i = threadIdx.x; i < bins; i += kThreads) shared.histogram[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x * 4; i < pools; i += kThreads * 4) {
      const int left = pools - i;
      int at = 0;
      each(keys_at<kStaged>(keys, from, i, pools), [&](uint32_t key) {
        if (key >> (pass == 1 ? 21 : 10) == prefix && at < left) atomicAdd(&shared.histogram[(key >> shift) & (bins - 1)], 1u);
        ++at;
      });
    }
    __syncthreads();
    find_bin(shared, bins, want);
    prefix = prefix << (pass == 1 ? 11 : 10) | shared.bin;
    want -= shared.above;
  }
  const uint32_t limit = prefix;  // `want` of those equal to it are kept
  const int per_warp = ((pools + kWarps - 1) / kWarps + 127) / 128 * 128, begin = warp * per_warp, end = min(pools, begin + per_warp);
  uint32_t above = 0, equal = 0;
  for (int i = begin + lane * 4; i < end; i += 128) {
    int at = i;
    each(keys_at<kStaged>(keys, from, i, pools), [&](uint32_t key) {
      above += at < end && key > limit;
      equal += at < end && key == limit;
      ++at;
    });
  }
  above = __reduce_add_sync(~0u, above), equal = __reduce_add_sync(~0u, equal);
  if (lane == 0) shared.warp_sum[warp] = above, shared.warp_equal[warp] = equal;
  __syncthreads();
  uint32_t rank = 0, taken = 0;
  for (int i = 0; i < warp; ++i) {
    const uint32_t ties = shared.warp_equal[i], room = want - taken;
    rank += shared.warp_sum[i] + min(ties, room);
    taken += min(ties, room);
  }
  for (int i = begin + lane * 4; i - lane * 4 < end; i += 128) {
    uint4 four = make_uint4(0, 0, 0, 0);
    if (i < end) four = keys_at<kStaged>(keys, from, i, pools);
    uint32_t high = 0, same = 0;  // bits of the four
    int at = 0;
    each(four, [&](uint32_t key) {
      high |= static_cast<uint32_t>(i + at < end && key > limit) << at;
      same |= static_cast<uint32_t>(i + at < end && key == limit) << at;
      ++at;
    });
    if (!__any_sync(~0u, high | same)) continue;
    const uint32_t counts = __popc(high) | __popc(same) << 16, scan = sum_to_here(counts);
    const uint32_t total = __shfl_sync(~0u, scan, 31), before = scan - counts;
    uint32_t ties = taken + (before >> 16), place = rank + (before & 0xffffu) + (min(ties, want) - taken);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool is_tie = same >> j & 1;
      if ((high >> j & 1) || (is_tie && ties < want)) write(static_cast<int>(place++), i + j);
      ties += is_tie;
    }
    const uint32_t after = min(taken + (total >> 16), want);
    rank += (total & 0xffffu) + (after - taken);
    taken = after;
  }
}

struct HeldShared : Shared {
  uint32_t listed[64], counts[16 * kWarps];  // keys of one bin; a round's and warp's pools above the limit, and (high half) equal to it
  uint32_t num_listed, limit, want;
};

// The same with every key in a register: rounds of 2,048 pools, four neighbours a thread. Bins are equal steps between the bound and the largest
// key, so they fill evenly; the few keys of the bin that holds the limit are ranked by one warp.
template <int kRounds, typename Write>
__device__ __forceinline__ void select_held(const float* from, int pools, int budget, HeldShared& shared, Write&& write) {
  static_assert(kRounds <= 16);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = static_cast<int>(threadIdx.x) * 4;
  uint32_t key[kRounds][4], peak = 0;
#pragma unroll
  for (int c = 0; c < kRounds; ++c) {
    const int at = c * kThreads * 4 + own;
    uint4 four = make_uint4(0, 0, 0, 0);
    if (at < pools) four = keys_at<false>(nullptr, from, at, pools);
    key[c][0] = four.x, key[c][1] = four.y, key[c][2] = four.z, key[c][3] = four.w;
    peak = max(max(peak, max(four.x, four.y)), max(four.z, four.w));
  }
  const uint32_t least = __reduce_min_sync(~0u, peak), most = __reduce_max_sync(~0u, peak);
  if (lane == 0) shared.warp_sum[warp] = least, shared.warp_equal[warp] = most;
  if (threadIdx.x == 0) shared.num_listed = 0;
  __syncthreads();
  uint32_t low = budget <= kThreads ? 0xffffffffu : 0u, high = 0, want = budget;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) low = min(low, shared.warp_sum[i]), high = max(high, shared.warp_equal[i]);
  for (;;) {  // the limit lies between low and high, `want`-th among the keys there
    const int shift = max(0, 21 - __clz(static_cast<int>(high - low)));
    for (int i = threadIdx.x; i < kBins; i += kThreads) shared.histogram[i] = 0;
    __syncthreads();
#pragma unroll
    for (int c = 0; c < kRounds; ++c)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (key[c][j] >= low && key[c][j] <= high) atomicAdd(&shared.histogram[(key[c][j] - low) >> shift], 1u);
    __syncthreads();
    find_bin(shared, kBins, want);
    const uint32_t bin = shared.bin, held = shared.histogram[bin];
    want -= shared.above;
    low += bin << shift, high = low + ((1u << shift) - 1);
    if (shift == 0) {
      if (threadIdx.x == 0) shared.limit = low, shared.want = want;
      break;
    }
    if (held <= 64) {
#pragma unroll
      for (int c = 0; c < kRounds; ++c)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (key[c][j] - low <= high - low) shared.listed[atomicAdd(&shared.num_listed, 1u) % 64] = key[c][j];
      __syncthreads();
      if (warp == 0)
        for (uint32_t i = lane; i < held; i += 32) {
          const uint32_t mine = shared.listed[i];
          uint32_t above = 0, equal = 0;
          for (uint32_t n = 0; n < held; ++n) above += shared.listed[n] > mine, equal += shared.listed[n] == mine;
          if (above < want && above + equal >= want) shared.limit = mine, shared.want = want - above;
        }
      break;
    }
    __syncthreads();  // the histogram is read before it is cleared
  }
  __syncthreads();
  const uint32_t limit = shared.limit;
  want = shared.want;  // of those equal to it are kept
  uint32_t marks[(kRounds + 3) / 4] = {};  // eight bits a round: above, equal
#pragma unroll
  for (int c = 0; c < kRounds; ++c) {
    uint32_t above = 0, equal = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      above |= static_cast<uint32_t>(key[c][j] > limit) << j;
      equal |= static_cast<uint32_t>(key[c][j] == limit && c * kThreads * 4 + own + j < pools) << j;
    }
    marks[c / 4] |= (above | equal << 4) << (c % 4 * 8);
    const uint32_t counts = __reduce_add_sync(~0u, static_cast<uint32_t>(__popc(above)) | static_cast<uint32_t>(__popc(equal)) << 16);
    if (lane == 0) shared.counts[c * kWarps + warp] = counts;
  }
  __syncthreads();
  if (warp == 0) {  // counts become what lies before a round's warp
    constexpr int kEach = (kRounds * kWarps + 31) / 32;
    uint32_t mine[kEach], sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = lane * kEach + i;
      mine[i] = at < kRounds * kWarps ? shared.counts[at] : 0u;
      sum += mine[i];
    }
    uint32_t scan = sum_to_here(sum) - sum;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = lane * kEach + i;
      if (at < kRounds * kWarps) shared.counts[at] = scan;
      scan += mine[i];
    }
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kRounds; ++c) {
    const uint32_t mark = marks[c / 4] >> (c % 4 * 8) & 0xffu, above = mark & 15u, equal = mark >> 4;
    if (!__any_sync(~0u, mark)) continue;
    const uint32_t counts = __popc(above) | __popc(equal) << 16;
    const uint32_t before = sum_to_here(counts) - counts + shared.counts[c * kWarps + warp];
    uint32_t ties = before >> 16, place = (before & 0xffffu) + min(ties, want);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool is_tie = equal >> j & 1;
      if ((above >> j & 1) || (is_tie && ties < want)) write(static_cast<int>(place++), c * kThreads * 4 + own + j);
      ties += is_tie;
    }
  }
}

}  // namespace

struct TopArguments {
  const float* scores;
  const int *request, *position, *slot, *page_table;
  int* out;
  int64_t score_row, table_row, out_row;
  int width, kpool, budget, page_shift, staged;
};

namespace {

// One row: `choose(from, pools, write)` picks among more pools than the budget. The histogram is free when it writes.
template <typename Choose> __device__ __forceinline__ void fill(const TopArguments& a, uint32_t (&list)[kBins], Choose&& choose) {
  const int row = blockIdx.x, width = a.width, kpool = a.kpool, page_shift = a.page_shift;
  const int state = a.slot[a.request[row]];
  int* target = a.out + row * a.out_row;
  if (state == 0) {
    for (int i = threadIdx.x; i < width; i += kThreads) target[i] = -1;
    return;
  }
  const int seen = a.position[row] + 1, pools = seen / kpool, tail = seen - pools * kpool;
  const int* pages = a.page_table + state * a.table_row;
  const float* from = a.scores + row * a.score_row;
  auto slot_of = [&](int token) { return (pages[token >> page_shift] << page_shift) | (token & ((1 << page_shift) - 1)); };
  auto write_pool = [&](int rank, int pool) {
    const int token = pool * kpool, first = slot_of(token);
    if (kpool == 4) {
      *reinterpret_cast<int4*>(target + rank * 4) = make_int4(first, first + 1, first + 2, first + 3);
    } else {
      for (int j = 0; j < kpool; ++j) target[rank * kpool + j] = first + j;
    }
  };
  const int kept = min(pools, a.budget);
  if (pools <= a.budget) {
    for (int i = threadIdx.x; i < pools; i += kThreads) write_pool(i, i);
  } else {
    auto note = [&](int rank, int pool) { list[rank] = pool; };
    choose(from, pools, note);
    __syncthreads();
    for (int i = threadIdx.x; i < kept; i += kThreads) write_pool(i, static_cast<int>(list[i]));
  }
  for (int i = threadIdx.x; i < width - kept * kpool; i += kThreads)
    target[kept * kpool + i] = i < tail ? slot_of(pools * kpool + i) : -1;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) top_pools(const __grid_constant__ TopArguments a) {
  extern __shared__ __align__(16) uint32_t keys[];
  __shared__ Shared shared;
  fill(a, shared.histogram, [&](const float* from, int pools, auto& write) {
    if (pools <= a.staged) select<true>(keys, from, pools, a.budget, shared, write);
    else select<false>(keys, from, pools, a.budget, shared, write);
  });
}

#define HELD(rounds)                                                                                                        \
  extern "C" __global__ void __launch_bounds__(kThreads, 2) top_pools_held_##rounds(const __grid_constant__ TopArguments a) { \
    __shared__ HeldShared shared;                                                                                           \
    fill(a, shared.histogram, [&](const float* from, int pools, auto& write) { select_held<rounds>(from, pools, a.budget, shared, write); }); \
  }
HELD(5)
HELD(9)
