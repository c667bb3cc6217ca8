// Exact top-`budget` of each row's pool scores, expanded to token slots, then the open tail, then -1.
//
// One block a row. Scores become order-preserving integers; three histogram passes (11, 11 and 10 bits) find the smallest kept key, then an
// ordered compaction keeps everything above it and, of the equal ones, the lowest pools. A NaN sorts below everything. The row is staged
// in shared memory when it fits, and read again from global memory when it does not.
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

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) top_pools(const float* scores, int64_t score_row, const int* request, const int* position,
                                                                 const int* slot, const int* page_table, int64_t table_row, int* out, int64_t out_row,
                                                                 int width, int kpool, int budget, int page_shift, int staged) {
  extern __shared__ uint32_t keys[];
  __shared__ Shared shared;
  const int row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int state = slot[request[row]];
  int* target = out + row * out_row;
  if (state == 0) {
    for (int i = threadIdx.x; i < width; i += kThreads) target[i] = -1;
    return;
  }
  const int seen = position[row] + 1, pools = seen / kpool, tail = seen - pools * kpool;
  const int* pages = page_table + state * table_row;
  const float* from = scores + row * score_row;
  const bool in_shared = pools <= staged;
  auto key_at = [&](int i) { return in_shared ? keys[i] : sortable(from[i]); };
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
  } else {
    for (int i = threadIdx.x; i < kBins; i += kThreads) shared.histogram[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < pools; i += kThreads) {
      const uint32_t key = sortable(from[i]);
      if (in_shared) keys[i] = key;
      atomicAdd(&shared.histogram[key >> 21], 1u);
    }
    __syncthreads();
    uint32_t want = budget;
    find_bin(shared, kBins, want);
    uint32_t prefix = shared.bin;
    want -= shared.above;
#pragma unroll
    for (int pass = 1; pass < 3; ++pass) {
      const int shift = pass == 1 ? 10 : 0, bins = pass == 1 ? 2048 : 1024;
      for (int i = threadIdx.x; i < bins; i += kThreads) shared.histogram[i] = 0;
      __syncthreads();
      for (int i = threadIdx.x; i < pools; i += kThreads) {
        const uint32_t key = key_at(i);
        if (key >> (pass == 1 ? 21 : 10) == prefix) atomicAdd(&shared.histogram[(key >> shift) & (bins - 1)], 1u);
      }
      __syncthreads();
      find_bin(shared, bins, want);
      prefix = prefix << (pass == 1 ? 11 : 10) | shared.bin;
      want -= shared.above;
    }
    const uint32_t limit = prefix;  // `want` of those equal to it are kept
    const int per_warp = ((pools + kWarps - 1) / kWarps + 31) / 32 * 32, begin = warp * per_warp, end = min(pools, begin + per_warp);
    uint32_t above = 0, equal = 0;
    for (int i = begin + lane; i - lane < end; i += 32) {
      const uint32_t key = i < end ? key_at(i) : 0u;
      above += __popc(__ballot_sync(~0u, i < end && key > limit));
      equal += __popc(__ballot_sync(~0u, i < end && key == limit));
    }
    if (lane == 0) shared.warp_sum[warp] = above, shared.warp_equal[warp] = equal;
    __syncthreads();
    uint32_t rank = 0, taken = 0;
    for (int i = 0; i < warp; ++i) {
      const uint32_t ties = shared.warp_equal[i], room = want - taken;
      rank += shared.warp_sum[i] + min(ties, room);
      taken += min(ties, room);
    }
    const uint32_t below = (1u << lane) - 1;
    for (int i = begin + lane; i - lane < end; i += 32) {
      const uint32_t key = i < end ? key_at(i) : 0u;
      const uint32_t ties = __ballot_sync(~0u, i < end && key == limit);
      const bool keep = i < end && (key > limit || (key == limit && taken + __popc(ties & below) < want));
      const uint32_t mask = __ballot_sync(~0u, keep);
      if (keep) write_pool(rank + __popc(mask & below), i);
      rank += __popc(mask);
      taken = min(taken + __popc(ties), want);
    }
  }
  for (int i = threadIdx.x; i < width - kept * kpool; i += kThreads)
    target[kept * kpool + i] = i < tail ? slot_of(pools * kpool + i) : -1;
}
