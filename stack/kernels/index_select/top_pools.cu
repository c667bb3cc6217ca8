// Exact top-`budget` of each row's pool scores, expanded to token slots, then the open tail, then -1.
//
// One block a row. Scores become order-preserving integers. The smallest of the threads' own maxima bounds the smallest kept key from below (there are as
// many maxima as threads, and no more pools are kept than that), which spares the first histogram most of its atomics; three histogram passes
// (11, 11 and 10 bits) find the key itself, then an ordered compaction keeps everything above it and, of the equal ones, the lowest pools. A NaN sorts
// below everything. The row is staged in shared memory when it fits, and read again from global memory when it does not.
#include <cstdint>

namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32, kBins = 2048;

__device__ __forceinline__ uint32_t sortable(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0u;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Shared {
  uint32_t histogram[kBins];
  uint32_t warp_sum[kWarps];
  uint32_t warp_equal[kWarps];
  uint32_t bin, above;
};

// The bin, from the top, in which the `want`-th largest lies, and how many lie above that bin.
__device__ __forceinline__ void find_bin(Shared& shared, int bins, uint32_t want) {
  const int per = bins / kThreads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = bins - 1 - static_cast<int>(threadIdx.x) * per;  // thread 0 has the top bins
  uint32_t mine = 0;
  for (int i = 0; i < per; ++i) mine += shared.histogram[first - i];
  uint32_t scan = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, scan, step);
    if (lane >= step) scan += other;
  }
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
    uint32_t counts = __popc(high) | __popc(same) << 16, scan = counts;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, scan, step);
      if (lane >= step) scan += other;
    }
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

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) top_pools(const float* scores, int64_t score_row, const int* request, const int* position,
                                                                 const int* slot, const int* page_table, int64_t table_row, int* out, int64_t out_row,
                                                                 int width, int kpool, int budget, int page_shift, int staged) {
  extern __shared__ __align__(16) uint32_t keys[];
  __shared__ Shared shared;
  const int row = blockIdx.x;
  const int state = slot[request[row]];
  int* target = out + row * out_row;
  if (state == 0) {
    for (int i = threadIdx.x; i < width; i += kThreads) target[i] = -1;
    return;
  }
  const int seen = position[row] + 1, pools = seen / kpool, tail = seen - pools * kpool;
  const int* pages = page_table + state * table_row;
  const float* from = scores + row * score_row;
  auto slot_of = [&](int token) { return (pages[token >> page_shift] << page_shift) | (token & ((1 << page_shift) - 1)); };
  auto write_pool = [&](int rank, int pool) {
    const int token = pool * kpool, first = slot_of(token);
    if (kpool == 4) {
      *reinterpret_cast<int4*>(target + rank * 4) = make_int4(first, first + 1, first + 2, first + 3);
    } else {
      for (int j = 0; j < kpool; ++j) target[rank * kpool + j] = first + j;
    }
  };
  const int kept = min(pools, budget);
  if (pools <= budget) {
    for (int i = threadIdx.x; i < pools; i += kThreads) write_pool(i, i);
  } else if (pools <= staged) {
    select<true>(keys, from, pools, budget, shared, write_pool);
  } else {
    select<false>(keys, from, pools, budget, shared, write_pool);
  }
  for (int i = threadIdx.x; i < width - kept * kpool; i += kThreads)
    target[kept * kpool + i] = i < tail ? slot_of(pools * kpool + i) : -1;
}
