// FP8 scores of pooled keys straight from their pages: decode, verify and short prefill passes.
//
// One warpgroup takes kRows neighbouring query rows (all 32 heads of each: 32 kRows columns of the matrix instruction) and every `parts`-th tile of 64
// pooled keys of their request, which are the instruction's 64 rows; so rows of one request share every key that is read. Keys come
// double-buffered into 128-byte-swizzled rows. Correct for rows of any requests: a tile that spans several visits each in turn.
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
  int rows, kpool, pools_a_page, parts;
};

// Column groups of 4 rows: a matrix instruction covers 4 rows x 32 heads = 128 columns (or one row alone: 32 columns).
template <int kRows> __device__ __forceinline__ void score(const ScoreArguments& a) {
  constexpr int kWide = kRows == 1 ? 1 : 4, kGroups = kRows / kWide, kColumns = kWide * kHeads;
  extern __shared__ __align__(1024) uint8_t smem[];
  uint8_t* query = smem + 2 * kTile * kD;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int begin = blockIdx.x * kRows, last_row = min(begin + kRows, a.rows) - 1;
  for (int i = threadIdx.x; i < kRows * kHeads * 8; i += kThreads) {
    const int n = i / 8, c = i % 8, row = begin + n / kHeads;
    copy16(shared_address(query) + n * kD + ((c ^ (n & 7)) << 4), a.q + (static_cast<int64_t>(row < a.rows ? row : 0) * kHeads + n % kHeads) * kD + c * 16, row < a.rows);
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
  const uint64_t query_at = descriptor(shared_address(query));
  const uint32_t stage0 = shared_address(smem);
  const int first_request = a.request[begin], last_request = a.request[last_row];

  for (int request = first_request; request <= last_request; ++request) {
    const int slot = a.slot[request];
    if (slot == 0) continue;
    int limit[kRows], pools = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = begin + r;
      limit[r] = row < a.rows && a.request[row] == request ? (a.position[row] + 1) / a.kpool : 0;
      pools = max(pools, limit[r]);
    }
    const int* pages = a.page_table + slot * a.table_row;
    const int tiles = (pools + kTile - 1) / kTile;
    // eight lanes bring a key, a warp its sixteen
    auto gather = [&](int tile, int stage) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = warp * 16 + i * 4 + lane / 8, chunk = lane % 8, pool = tile * kTile + key;
        const bool valid = tile < tiles && pool < pools;
        const int64_t page = valid ? pages[pool / a.pools_a_page] : 0;
        copy16(stage0 + stage * kTile * kD + key * kD + ((chunk ^ (key & 7)) << 4), a.codes + page * a.codes_page + (valid ? pool % a.pools_a_page : 0) * a.codes_row + chunk * 16, valid);
      }
      copies_commit();
    };
    __syncthreads();  // the previous request's last tile is read
    gather(blockIdx.y, 0);
    int stage = 0;
    for (int tile = blockIdx.y; tile < tiles; tile += a.parts) {
      gather(tile + a.parts, stage ^ 1);
      float scale[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int pool = tile * kTile + warp * 16 + g + 8 * i;
        scale[i] = pool < pools ? a.scales[static_cast<int64_t>(pages[pool / a.pools_a_page]) * a.scales_page + pool % a.pools_a_page] : 0.f;
      }
      copies_wait<1>();
      proxy_fence();
      __syncthreads();
      const uint64_t keys = descriptor(stage0 + stage * kTile * kD);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        float d[kColumns / 2];
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) d[i] = 0.f;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) WgmmaFp8<kColumns>::run(d, keys + k * 2, query_at + group * (kColumns * kD / 16) + k * 2, k > 0);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int r = 0; r < kWide; ++r) {
          const int own = group * kWide + r;
          float sum[2] = {0.f, 0.f};
#pragma unroll
          for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
              for (int c = 0; c < 2; ++c) sum[i] += fmaxf(d[(r * 4 + j) * 4 + i * 2 + c], 0.f) * weight[own][j * 2 + c];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
            sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
            const int pool = tile * kTile + warp * 16 + g + 8 * i;
            if (t == r && pool < limit[own]) a.out[static_cast<int64_t>(begin + own) * a.out_row + pool] = sum[i] * scale[i];
          }
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
