// Grouped FP8 products over tiles of sorted rows, and the shared expert's beside them: blocks that stay while weights stream through them.
//
// An item is two blocks of 128 outputs of one tile of kRows rows; a block of threads takes every gridDim-th. Its first warpgroup fills a ring of stages of 128 inner
// channels: weights by tensor copies, rows and their scales gathered by 16 and 4 bytes a lane. It runs ahead, into the next item too. Each of the two others
// multiplies one block of outputs, one scale of the weight, as two instructions' left operand with the rows as the right one, and adds scaled products in FP32. So
// few rows waste little, and a weight is read once for as many rows as a tile has.
// Up: the two blocks are gates and ups of the same channels, and what is stored are codes and a scale of their activation. Down: neighbours, stored as they are.
#include <cuda_bf16.h>
#include <cstdint>

#include "../hopper.cuh"
#include "../roles.cuh"
#include "../tensor_map.cuh"
#include "encode.cuh"

namespace {

constexpr int kBlock = 128, kThreads = 384, kWarps = 4;

}  // namespace

struct GroupedArguments {
  const uint8_t* x;  // codes of the tokens (up), or of the sorted rows and behind them of the tokens (down)
  const float *x_scale, *w_scale, *shared_scale;
  const int *layout, *source;
  uint8_t* codes;    // up: [sorted_rows + tokens][outputs / 2]
  float* scales;     // up: MN-major
  __nv_bfloat16* y;  // down: [sorted_rows + tokens][outputs]
  int64_t x_row, x_scale_group, scales_group;
  int tokens, sorted_rows, choices, outputs, width, shared_outputs, shared_width;
  float limit;
};

template <int kRows> struct Ring {
  static constexpr int kStages = kRows == 64 ? 4 : kRows == 32 ? 5 : 6;
  static constexpr int kWeights = 2 * kBlock * kBlock, kStage = kWeights + kRows * kBlock, kLine = 2 * kBlock + 8;
  uint8_t stage[kStages][kStage];
  __nv_bfloat16 out[kRows][kLine];
  float scale[kStages][kRows];
  uint64_t full[kStages], empty[kStages];
};

// One item. Items of the shared expert come first; its rows are the tokens.
struct Item {
  bool is_shared, is_some;
  int first, column, groups;  // first row of the tile among its kind; first channel that is stored; scale groups of the product
  int weight_row[2];          // where each block of outputs begins among the rows of all experts
};

template <int kRows, bool kUp> __device__ __forceinline__ Item item_at(const GroupedArguments& a, int item) {
  constexpr int kColumns = kUp ? kBlock : 2 * kBlock;
  const int shared_tiles = a.shared_outputs / (2 * kBlock), shared_items = (a.tokens + kRows - 1) / kRows * shared_tiles;
  if (item < shared_items) {
    const int column = item % shared_tiles * kColumns;
    return {true, true, item / shared_tiles * kRows, column, a.shared_width / kBlock, {column, column + (kUp ? a.shared_outputs / 2 : kBlock)}};
  }
  const int tiles = a.outputs / (2 * kBlock), first = (item - shared_items) / tiles * kRows, column = (item - shared_items) % tiles * kColumns;
  const int expert = a.layout[first], row = expert * a.outputs + column;
  return {false, expert >= 0, first, column, a.width / kBlock, {row, row + (kUp ? a.outputs / 2 : kBlock)}};
}

// Whose row of x a tile's row is, or -1 for nobody's.
template <bool kUp> __device__ __forceinline__ int row_of_x(const GroupedArguments& a, const Item& item, int row) {
  const int at = item.first + row;
  if (item.is_shared) return at >= a.tokens ? -1 : kUp ? at : a.sorted_rows + at;
  const int entry = a.source[at];
  return entry < 0 ? -1 : kUp ? entry / a.choices : at;
}

template <int kRows, bool kUp> __device__ __forceinline__ void fill(const GroupedArguments& a, const TensorMap* weight, const TensorMap* shared, Ring<kRows>& ring, int items) {
  using R = Ring<kRows>;
  constexpr int kOwn = kRows / kWarps, kTurns = kOwn / 4;  // rows of a warp, four a turn
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunk = lane % 8;
  int count = 0;
  auto landed = [&](int of) {
    proxy_fence();
    __syncwarp();
    arrive_for_warp(shared_address(&ring.full[of % R::kStages]), lane);
  };
  for (int i = blockIdx.x; i < items; i += gridDim.x) {
    const Item item = item_at<kRows, kUp>(a, i);
    if (!item.is_some) continue;
    const uint8_t* from[kTurns];
    uint32_t to[kTurns];
#pragma unroll
    for (int j = 0; j < kTurns; ++j) {
      const int row = warp * kOwn + j * 4 + lane / 8, of_x = row_of_x<kUp>(a, item, row);
      from[j] = of_x < 0 ? nullptr : a.x + of_x * a.x_row + chunk * 16;
      to[j] = row * kBlock + ((chunk ^ (row & 7)) << 4);
    }
    const int scaled = lane < kOwn ? row_of_x<kUp>(a, item, warp * kOwn + lane) : -1;
    for (int k = 0; k < item.groups; ++k, ++count) {
      const int stage = count % R::kStages;
      wait_here(shared_address(&ring.empty[stage]), (count / R::kStages + 1) % 2);
      const uint32_t weights = shared_address(ring.stage[stage]), rows = weights + R::kWeights, full = shared_address(&ring.full[stage]);
      if (threadIdx.x == 0) {
        barrier_expect(full, R::kWeights);
        for (int block = 0; block < 2; ++block)
          tensor_load(weights + block * kBlock * kBlock, item.is_shared ? shared : weight, k * kBlock, item.weight_row[block], full);
      }
#pragma unroll
      for (int j = 0; j < kTurns; ++j)
        if (from[j]) copy16(rows + to[j], from[j] + k * kBlock, true);
      if (scaled >= 0) copy4(shared_address(&ring.scale[stage][warp * kOwn + lane]), a.x_scale + scaled + k * a.x_scale_group);
      copies_commit();
      if (count) copies_wait<1>(), landed(count - 1);
    }
  }
  if (count) copies_wait<0>(), landed(count - 1);
}

// A tile's activation: eight threads a row, codes and a scale.
template <int kRows> __device__ __forceinline__ void store_activation(const GroupedArguments& a, const Ring<kRows>& ring, const Item& item, int thread) {
  for (int row = thread / 8; row < kRows; row += 32) {
    if (row_of_x<true>(a, item, row) < 0) continue;
    const int channel = thread % 8 * 16;
    const int64_t to = item.first + row + (item.is_shared ? a.sorted_rows : 0);
    float gate[16], up[16];
    uint4 packed;
    load16(&ring.out[row][channel], gate);
    load16(&ring.out[row][kBlock + channel], up);
    activate16(gate, up, a.limit);
    const float scale = encode16(gate, packed);
    *reinterpret_cast<uint4*>(a.codes + to * (a.outputs / 2) + item.column + channel) = packed;
    if (channel == 0) a.scales[to + item.column / kBlock * a.scales_group] = scale;
  }
}

template <int kRows> __device__ __forceinline__ void store_outputs(const GroupedArguments& a, const Ring<kRows>& ring, const Item& item, int thread) {
  for (int i = thread; i < kRows * 32; i += 256) {
    const int row = i / 32, output = i % 32 * 8;
    if (row_of_x<false>(a, item, row) < 0) continue;
    const int64_t to = item.first + row + (item.is_shared ? a.sorted_rows : 0);
    *reinterpret_cast<int4*>(a.y + to * a.outputs + item.column + output) = *reinterpret_cast<const int4*>(&ring.out[row][output]);
  }
}

template <int kRows, bool kUp> __device__ __forceinline__ void multiply(const GroupedArguments& a, Ring<kRows>& ring, int items) {
  using R = Ring<kRows>;
  constexpr int kSums = kRows / 2;  // of a thread, for 64 outputs
  const int thread = threadIdx.x - 128, group = thread / 128, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  int count = 0;
  for (int i = blockIdx.x; i < items; i += gridDim.x) {
    const Item item = item_at<kRows, kUp>(a, i);
    if (!item.is_some) continue;
    const float* scales = (item.is_shared ? a.shared_scale : a.w_scale) + static_cast<int64_t>((group ? item.weight_row[1] : item.weight_row[0]) / kBlock) * item.groups;
    float total[2][kSums], held = 0.f;
#pragma unroll
    for (int j = 0; j < kSums; ++j) total[0][j] = total[1][j] = 0.f;
    for (int k = 0; k < item.groups; ++k, ++count) {
      if (k % 32 == 0) held = k + lane < item.groups ? scales[k + lane] : 0.f;
      const float of_weight = __shfl_sync(~0u, held, k % 32);
      const int stage = count % R::kStages;
      wait_here(shared_address(&ring.full[stage]), count / R::kStages % 2);
      const uint32_t weights = shared_address(ring.stage[stage]) + group * kBlock * kBlock, rows = shared_address(ring.stage[stage]) + R::kWeights;
      float d[2][kSums];
      wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 4; ++j) WgmmaFp8<kRows>::run(d[half], descriptor(weights + half * 64 * kBlock) + j * 2, descriptor(rows) + j * 2, j > 0);
        wgmma_commit();
      }
      float2 scale[kRows / 8];  // of rows 8 j + 2 t, + 1
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        scale[j] = *reinterpret_cast<const float2*>(&ring.scale[stage][j * 8 + t * 2]);
        scale[j].x *= of_weight, scale[j].y *= of_weight;
      }
      auto add = [&](int half) {
        ready(d[half]);
#pragma unroll
        for (int j = 0; j < kSums; ++j) total[half][j] += d[half][j] * (j % 2 ? scale[j / 4].y : scale[j / 4].x);
      };
      wgmma_wait<1>();
      add(0);
      wgmma_wait<0>();
      __syncwarp();
      arrive_for_warp(shared_address(&ring.empty[stage]), lane);
      add(1);
    }
    sync_some<1, 256>();  // the item before has been stored
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < kSums; ++j) ring.out[j / 4 * 8 + t * 2 + j % 2][group * kBlock + half * 64 + warp % 4 * 16 + g + j / 2 % 2 * 8] = __float2bfloat16(total[half][j]);
    sync_some<1, 256>();
    if constexpr (kUp) store_activation(a, ring, item, thread);
    else store_outputs(a, ring, item, thread);
  }
}

template <int kRows, bool kUp> __device__ __forceinline__ void grouped(const GroupedArguments& a, const TensorMap* weight, const TensorMap* shared) {
  extern __shared__ __align__(1024) uint8_t smem[];
  Ring<kRows>& ring = *reinterpret_cast<Ring<kRows>*>(smem);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Ring<kRows>::kStages; ++i) {
      barrier_init(shared_address(&ring.full[i]), 1 + kWarps * kArrivals);
      barrier_init(shared_address(&ring.empty[i]), 2 * kWarps * kArrivals);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int items = (a.tokens + kRows - 1) / kRows * (a.shared_outputs / (2 * kBlock)) + a.sorted_rows / kRows * (a.outputs / (2 * kBlock));
  if (threadIdx.x < 128) {
    leave_registers<56>();
    fill<kRows, kUp>(a, weight, shared, ring, items);
  } else {
    take_registers<224>();
    multiply<kRows, kUp>(a, ring, items);
  }
}

#define ENTRY(name, rows, up)                                                                                                                       \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                                                                                         \
      name(const __grid_constant__ GroupedArguments a, const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap shared) {         \
    grouped<rows, up>(a, &weight, &shared);                                                                                                         \
  }
ENTRY(moe_up_16, 16, true)
ENTRY(moe_up_32, 32, true)
ENTRY(moe_up_64, 64, true)
ENTRY(moe_down_16, 16, false)
ENTRY(moe_down_32, 32, false)
ENTRY(moe_down_64, 64, false)
