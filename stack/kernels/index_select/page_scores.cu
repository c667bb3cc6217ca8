// FP8 scores of pooled keys straight from their pages.
//
// One warpgroup takes kRows neighbouring query rows (all 32 heads of each: 32 kRows columns of the matrix instruction) and every `parts`-th tile of 64
// pooled keys of their request, which are the instruction's 64 rows; so rows of one request share every key that is read. Keys and their scales come
// double-buffered, keys into 128-byte-swizzled rows. Pages are found by shifts and without branches: every lane copies a key, the last one where there are no
// more, whose scores nobody stores. Four lanes share a key's sums; each ends up with one row of them, which it stores.
// Correct for rows of any requests: a tile that spans several visits each in turn.
#include <cuda_bf16.h>
#include <cstdint>

#include "../hopper.cuh"

namespace {

constexpr int kHeads = 32, kD = 128, kTile = 64, kThreads = 128;

}  // namespace

struct ScoreArguments {
  const uint8_t* q;     // [rows][32][128] codes
  const float* weight;  // [rows][32], every factor but the key's scale
  const uint8_t* codes;
  const float* scales;
  const int *page_table, *slot, *request, *position;
  float* out;
  int64_t codes_page, codes_row, scales_page, table_row, out_row;
  int rows, kpool, page_shift, parts;  // a page holds 1 << page_shift pools
};

template <int kRows> struct ScoreShared {
  uint8_t keys[2][kTile * kD], query[kRows * kHeads * kD];
  float scale[2][kTile];
};

// The sum over the four lanes of a key: of the first argument in even lanes and of the second in odd ones (`by` 1), then of lanes 0, 1 and 2, 3 (`by` 2).
__device__ __forceinline__ float shared_sum(float even, float odd, int by) {
  const bool is_odd = threadIdx.x & by;
  return (is_odd ? odd : even) + __shfl_xor_sync(~0u, is_odd ? even : odd, by);
}

// Column groups of 4 rows: a matrix instruction covers 4 rows x 32 heads = 128 columns (or one row alone: 32 columns).
template <int kRows> __device__ __forceinline__ void score(const ScoreArguments& a) {
  constexpr int kWide = kRows == 1 ? 1 : 4, kGroups = kRows / kWide, kColumns = kWide * kHeads;
  extern __shared__ __align__(1024) uint8_t smem[];
  ScoreShared<kRows>& shared = *reinterpret_cast<ScoreShared<kRows>*>(smem);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int begin = blockIdx.x * kRows, last_row = min(begin + kRows, a.rows) - 1;
  for (int i = threadIdx.x; i < kRows * kHeads * 8; i += kThreads) {
    const int n = i / 8, c = i % 8, row = begin + n / kHeads;
    copy16(shared_address(shared.query) + n * kD + ((c ^ (n & 7)) << 4), a.q + (static_cast<int64_t>(row < a.rows ? row : 0) * kHeads + n % kHeads) * kD + c * 16, row < a.rows);
  }
  copies_commit();
  float weight[kRows][8];  // heads 8 j + 2 t, + 1
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 w = begin + r < a.rows ? *reinterpret_cast<const float2*>(a.weight + static_cast<int64_t>(begin + r) * kHeads + j * 8 + t * 2) : make_float2(0.f, 0.f);
      weight[r][j * 2] = w.x, weight[r][j * 2 + 1] = w.y;
    }
  const uint64_t query_at = descriptor(shared_address(shared.query));
  const uint32_t keys_at = shared_address(shared.keys), scales_at = shared_address(shared.scale);
  const int inside = (1 << a.page_shift) - 1, first_request = a.request[begin], last_request = a.request[last_row];

  for (int request = first_request; request <= last_request; ++request) {
    const int slot = a.slot[request];
    if (slot == 0) continue;
    auto pools_of = [&](int row) { return row < a.rows && a.request[row] == request ? (a.position[row] + 1) / a.kpool : 0; };
    int pools = 0, limit[kGroups];  // of all rows; of those whose scores this lane stores
#pragma unroll
    for (int r = 0; r < kRows; ++r) pools = max(pools, pools_of(begin + r));
#pragma unroll
    for (int group = 0; group < kGroups; ++group) limit[group] = kWide == 1 && t ? 0 : pools_of(begin + group * kWide + (kWide == 1 ? 0 : t));
    const int* pages = a.page_table + slot * a.table_row;
    const int tiles = (pools + kTile - 1) / kTile;
    // eight lanes bring a key, a warp its sixteen and their scales
    auto gather = [&](int tile, int stage) {
      const uint8_t* from[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pool = min(tile * kTile + warp * 16 + i * 4 + lane / 8, pools - 1);
        from[i] = a.codes + pages[pool >> a.page_shift] * a.codes_page + (pool & inside) * a.codes_row + lane % 8 * 16;
      }
      const int pool = min(tile * kTile + warp * 16 + lane % 16, pools - 1);
      const float* scale = a.scales + pages[pool >> a.page_shift] * a.scales_page + (pool & inside);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = warp * 16 + i * 4 + lane / 8;
        copy16(keys_at + stage * kTile * kD + key * kD + ((lane % 8 ^ (key & 7)) << 4), from[i], true);
      }
      if (lane < 16) copy4(scales_at + (stage * kTile + warp * 16 + lane) * 4, scale);
      copies_commit();
    };
    if (blockIdx.y >= tiles) continue;
    __syncthreads();  // the previous request's last tile is read
    gather(blockIdx.y, 0);
    int stage = 0;
    for (int tile = blockIdx.y; tile < tiles; tile += a.parts) {
      gather(tile + a.parts, stage ^ 1);
      copies_wait<1>();
      proxy_fence();
      __syncthreads();
      const uint64_t keys = descriptor(keys_at + stage * kTile * kD);
      const float scale[2] = {shared.scale[stage][warp * 16 + g], shared.scale[stage][warp * 16 + g + 8]};
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        float d[kColumns / 2], sum[kWide][2];
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) WgmmaFp8<kColumns>::run(d, keys + k * 2, query_at + group * (kColumns * kD / 16) + k * 2, k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        ready(d);
#pragma unroll
        for (int r = 0; r < kWide; ++r)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            sum[r][i] = 0.f;
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
              for (int c = 0; c < 2; ++c) sum[r][i] += fmaxf(d[(r * 4 + j) * 4 + i * 2 + c], 0.f) * weight[group * kWide + r][j * 2 + c];
          }
        const int row = begin + group * kWide + (kWide == 1 ? 0 : t);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float mine;
          if constexpr (kWide == 4) {
            mine = shared_sum(shared_sum(sum[0][i], sum[1][i], 1), shared_sum(sum[2][i], sum[3][i], 1), 2);
          } else {
            mine = sum[0][i] + __shfl_xor_sync(~0u, sum[0][i], 1);
            mine += __shfl_xor_sync(~0u, mine, 2);
          }
          const int pool = tile * kTile + warp * 16 + g + 8 * i;
          if (pool < limit[group]) a.out[row * a.out_row + pool] = mine * scale[i];
        }
      }
      __syncthreads();  // before the stage is filled again
      stage ^= 1;
    }
    copies_wait<0>();
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 3) page_scores_8(const __grid_constant__ ScoreArguments a) { score<8>(a); }
extern "C" __global__ void __launch_bounds__(kThreads, 4) page_scores_4(const __grid_constant__ ScoreArguments a) { score<4>(a); }
extern "C" __global__ void __launch_bounds__(kThreads, 6) page_scores_1(const __grid_constant__ ScoreArguments a) { score<1>(a); }
