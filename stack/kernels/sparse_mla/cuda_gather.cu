// Absorbed sparse attention of 16 heads a block over a query's own set of latent rows, on Hopper's warpgroup instructions.
//
// One warpgroup serves one (query, 16 heads, split) at a time. A tile is 64 keys: rows are gathered into 128-byte-swizzled
// panels by asynchronous copies, S' = KV . Q' takes the keys as the 64 rows of the matrix instruction, and O' = KV' . P' takes
// KV' from registers (ldmatrix transposes; FP8 pairs are unzipped by byte permutes, and the two orders that this implies,
// of latents and of keys, are undone at the store of O and at the store of P). FP8 products would otherwise need a transposed copy of KV.
#include <cuda_bf16.h>
#include <cstdint>

#include "../hopper.cuh"

namespace {

constexpr int kHeads = 16, kLatent = 512, kTile = 64, kThreads = 128;  // threads of one warpgroup
constexpr float kFp8Log2Max = 8.807354922057604f;  // log2(448)

__device__ __forceinline__ uint32_t fp8x4(float a, float b, float c, float d) {
  return static_cast<uint32_t>(e4m3x2(a, b)) | (static_cast<uint32_t>(e4m3x2(c, d)) << 16);
}

__device__ __forceinline__ uint32_t bf16x2(float lo, float hi) {
  __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<uint32_t*>(&v);
}

// Sizes of one element type: bytes of a row, 128-byte panels of it, and a tile's matrix steps.
template <bool kFp8> struct Shape {
  static constexpr int kRowBytes = kLatent * (kFp8 ? 1 : 2);
  static constexpr int kPanels = kRowBytes / 128;
  static constexpr int kStageBytes = kTile * kRowBytes;
  static constexpr int kQueryBytes = kHeads * kRowBytes;
  static constexpr int kProbBytes = kHeads * 128;
};

// Scalars in shared memory after the tiles.
struct Scratch {
  float query_scale[kHeads];
  float tile_max[4][kHeads];
  float sum[4][kHeads];
  int last[8];
};

template <bool kFp8>
__device__ __forceinline__ void load_query(const __nv_bfloat16* q, int64_t head_stride, uint8_t* smem_q, Scratch& scratch, int num_heads) {
  if (threadIdx.x >= kThreads) return;
  const int head = threadIdx.x / 8, part = threadIdx.x % 8;
  uint4 v[8];
  float peak = 0.f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = head < num_heads ? *reinterpret_cast<const uint4*>(q + head * head_stride + (i * 8 + part) * 8) : make_uint4(0, 0, 0, 0);
    const __nv_bfloat162* h = reinterpret_cast<const __nv_bfloat162*>(&v[i]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 f = __bfloat1622float2(h[j]);
      peak = fmaxf(peak, fmaxf(fabsf(f.x), fabsf(f.y)));
    }
  }
  if constexpr (kFp8) {
#pragma unroll
    for (int lane = 1; lane < 8; lane *= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, lane));
    const float scale = fmaxf(peak, 1e-10f) / 448.f, inverse = 1.f / scale;
    if (part == 0) scratch.query_scale[head] = scale;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const __nv_bfloat162* h = reinterpret_cast<const __nv_bfloat162*>(&v[i]);
      float2 a = __bfloat1622float2(h[0]), b = __bfloat1622float2(h[1]), c = __bfloat1622float2(h[2]), d = __bfloat1622float2(h[3]);
      const int byte = (i * 8 + part) * 8, panel = byte / 128, chunk = (byte % 128) / 16;
      uint2 packed = make_uint2(fp8x4(a.x * inverse, a.y * inverse, b.x * inverse, b.y * inverse),
                                fp8x4(c.x * inverse, c.y * inverse, d.x * inverse, d.y * inverse));
      *reinterpret_cast<uint2*>(smem_q + panel * (kHeads * 128) + head * 128 + ((chunk ^ (head & 7)) << 4) + (byte & 8)) = packed;
    }
  } else {
    if (part == 0) scratch.query_scale[head] = 1.f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int byte = (i * 8 + part) * 16, panel = byte / 128, chunk = (byte % 128) / 16;
      *reinterpret_cast<uint4*>(smem_q + panel * (kHeads * 128) + head * 128 + ((chunk ^ (head & 7)) << 4)) = v[i];
    }
  }
}

struct Pool {
  const uint8_t* base;
  int64_t page_bytes;
  int64_t row_bytes;
  int page_shift;
};

// Each warp brings its sixteen rows of the tile, or half of them where two warpgroups share it: it is also the warp that holds their scores.
template <bool kFp8, int kGroups>
__device__ __forceinline__ void gather(const Pool& pool, int slot_of_lane, uint32_t stage, int warp, int lane, int group) {
  const int64_t safe = slot_of_lane < 0 ? 0 : slot_of_lane;
  const int64_t offset = (safe >> pool.page_shift) * pool.page_bytes + (safe & ((1 << pool.page_shift) - 1)) * pool.row_bytes;
  const int lo = static_cast<int>(offset), hi = static_cast<int>(offset >> 32);
#pragma unroll
  for (int n = 0; n < 16 / kGroups; ++n) {
    const int i = kGroups == 1 ? n : group * 8 + n, key = warp * 16 + i;
    const bool valid = __shfl_sync(~0u, slot_of_lane, i) >= 0;
    const int64_t row = (static_cast<int64_t>(__shfl_sync(~0u, hi, i)) << 32) | static_cast<uint32_t>(__shfl_sync(~0u, lo, i));
    const uint8_t* from = pool.base + row + lane * 16;
    const uint32_t to = stage + (lane / 8) * (kTile * 128) + key * 128 + (((lane % 8) ^ (key & 7)) << 4);
#pragma unroll
    for (int part = 0; part < (kFp8 ? 1 : 2); ++part) copy16_near(to + part * 4 * (kTile * 128), from + part * 512, valid);
  }
  copies_commit();
}

// Probabilities of the thread's keys (rows g and g + 8 of its warp) for its four heads, to the K-major operand P'.
template <bool kFp8>
__device__ __forceinline__ void store_probabilities(const float (&p)[8], uint8_t* smem_p, int warp, int lane) {
  // p[r*2 + c + 4*n]: head 2t + c + 8n, key row g + 8r
  const int g = lane / 4, t = lane % 4;
  const bool odd = g & 1;
  if constexpr (kFp8) {
    // 16 bits a head: (row g, row g + 8); partners g ^ 1 exchange two heads so that each stores two words
    uint32_t low = fp8x4(p[0], p[2], p[1], p[3]), high = fp8x4(p[4], p[6], p[5], p[7]);
    uint32_t other = __shfl_xor_sync(~0u, odd ? low : high, 4), mine = odd ? high : low;
    uint32_t first = odd ? other : mine, second = odd ? mine : other;  // even row, odd row; low half head 2t, high half 2t+1
    // slots of a word: row g, row g+1, row g+8, row g+9
    uint32_t word0 = __byte_perm(first, second, 0x5140), word1 = __byte_perm(first, second, 0x7362);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int head = 2 * t + c + (odd ? 8 : 0);
      *reinterpret_cast<uint32_t*>(smem_p + head * 128 + ((warp ^ (head & 7)) << 4) + 4 * (g / 2)) = c ? word1 : word0;
    }
  } else {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t low = bf16x2(p[r * 2], p[r * 2 + 1]), high = bf16x2(p[r * 2 + 4], p[r * 2 + 5]);
      uint32_t other = __shfl_xor_sync(~0u, odd ? low : high, 4), mine = odd ? high : low;
      uint32_t first = odd ? other : mine, second = odd ? mine : other;
      const int chunk = warp * 2 + r;  // eight keys of two bytes
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int head = 2 * t + c + (odd ? 8 : 0);
        *reinterpret_cast<uint32_t*>(smem_p + head * 128 + ((chunk ^ (head & 7)) << 4) + 4 * (g / 2)) =
            __byte_perm(first, second, c ? 0x7632 : 0x5410);
      }
    }
  }
}

// O'[64 latents of panel block m] += KV' P' over the tile's 64 keys.
template <bool kFp8, int kGroups>
__device__ __forceinline__ void accumulate(float (&o)[8 / kGroups][8], uint32_t stage, uint64_t prob, int warp, int lane, int group) {
#pragma unroll
  for (int own = 0; own < 8 / kGroups; ++own) {
    const int m = kGroups == 1 ? own : group * (8 / kGroups) + own;
    if constexpr (kFp8) {
      uint32_t a[2][4];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        uint32_t r[4];
        const int key = k * 32 + lane, chunk = (m % 2) * 4 + warp;
        ldmatrix_t(r, stage + (m / 2) * (kTile * 128) + key * 128 + ((chunk ^ (key & 7)) << 4));
        a[k][0] = __byte_perm(r[0], r[1], 0x6420);
        a[k][1] = __byte_perm(r[0], r[1], 0x7531);
        a[k][2] = __byte_perm(r[2], r[3], 0x6420);
        a[k][3] = __byte_perm(r[2], r[3], 0x7531);
      }
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 2; ++k) Wgmma16<true>::rs(o[own], a[k], prob + k * 2);
    } else {
      uint32_t a[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int key = k * 16 + (lane / 16) * 8 + lane % 8, chunk = warp * 2 + (lane / 8) % 2;
        ldmatrix_t(a[k], stage + m * (kTile * 128) + key * 128 + ((chunk ^ (key & 7)) << 4));
      }
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) Wgmma16<false>::rs(o[own], a[k], prob + k * 2);
    }
    wgmma_commit();
  }
  wgmma_wait<0>();
}

template <bool kFp8, int kGroups>
__device__ __forceinline__ void store_output(const float (&o)[8 / kGroups][8], const float (&factor)[4], __nv_bfloat16* out, float* partial,
                                             int64_t head_stride, int num_heads, int warp, int lane, int group) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int own = 0; own < 8 / kGroups; ++own) {
    const int m = kGroups == 1 ? own : group * (8 / kGroups) + own;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int head = 2 * t + c + 8 * n;
        const float x = o[own][n * 4 + c] * factor[n * 2 + c], y = o[own][n * 4 + 2 + c] * factor[n * 2 + c];
        // FP8: rows g and g + 8 are latents 2g and 2g + 1; BF16: latents g and g + 8
        const int latent = m * 64 + warp * 16 + (kFp8 ? 2 * g : g);
        if (head >= num_heads) continue;
        if (partial != nullptr) {
          if constexpr (kFp8) {
            *reinterpret_cast<float2*>(partial + head * static_cast<int64_t>(kLatent) + latent) = make_float2(x, y);
          } else {
            partial[head * static_cast<int64_t>(kLatent) + latent] = x;
            partial[head * static_cast<int64_t>(kLatent) + latent + 8] = y;
          }
        } else if constexpr (kFp8) {
          *reinterpret_cast<uint32_t*>(out + head * head_stride + latent) = bf16x2(x, y);
        } else {
          out[head * head_stride + latent] = __float2bfloat16(x);
          out[head * head_stride + latent + 8] = __float2bfloat16(y);
        }
      }
    }
  }
}

// Tiles up to the last valid entry of the row: nothing behind it is read.
template <int kGroups> __device__ __forceinline__ int count_tiles(const int* index, int width, Scratch& scratch) {
  int last = -1;
  for (int i = threadIdx.x * 4; i < width; i += kGroups * kThreads * 4) {
    int4 v = *reinterpret_cast<const int4*>(index + i);
    if (v.x >= 0) last = i;
    if (v.y >= 0) last = i + 1;
    if (v.z >= 0) last = i + 2;
    if (v.w >= 0) last = i + 3;
  }
  last = __reduce_max_sync(~0u, last);
  if (threadIdx.x % 32 == 0) scratch.last[threadIdx.x / 32] = last;
  __syncthreads();
  last = max(max(scratch.last[0], scratch.last[1]), max(scratch.last[2], scratch.last[3]));
  if constexpr (kGroups == 2) last = max(last, max(max(scratch.last[4], scratch.last[5]), max(scratch.last[6], scratch.last[7])));
  return last / kTile + (last >= 0);
}

// Two warpgroups share a tile: each brings half of its rows, multiplies half of the latents into the scores and half of them into the output.
template <bool kFp8, int kStages, int kGroups>
__device__ __forceinline__ void attend(const __nv_bfloat16* q, int64_t q_row, int64_t q_head, Pool pool, const int* index, int64_t index_row,
                                       int width, __nv_bfloat16* out, int64_t out_row, int64_t out_head, float* partial, float* lse,
                                       int num_rows, int num_heads, int num_splits, float scale_log2) {
  using S = Shape<kFp8>;
  extern __shared__ __align__(1024) uint8_t smem[];
  uint8_t* smem_q = smem + kStages * S::kStageBytes;
  const int group = kGroups == 1 ? 0 : threadIdx.x / kThreads, mine = threadIdx.x % kThreads;
  uint8_t* after_q = smem_q + S::kQueryBytes;
  uint8_t* smem_p = after_q + group * S::kProbBytes;
  Scratch* scratches = reinterpret_cast<Scratch*>(after_q + kGroups * S::kProbBytes);
  Scratch& scratch = scratches[group];
  float (*halves)[8][kThreads] = reinterpret_cast<float (*)[8][kThreads]>(scratches + kGroups);  // scores over one half of the latents
  const uint32_t stage0 = shared_address(smem);
  const uint64_t query = descriptor(shared_address(smem_q)), prob = descriptor(shared_address(smem_p));
  const int warp = mine / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int blocks = (num_heads + kHeads - 1) / kHeads;
  const int64_t items = static_cast<int64_t>(num_rows) * blocks * num_splits;

  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int split = static_cast<int>(item % num_splits);
    const int block = static_cast<int>(item / num_splits % blocks);
    const int64_t row = item / num_splits / blocks;
    const int* row_index = index + row * index_row;
    const int heads = min(kHeads, num_heads - block * kHeads);
    load_query<kFp8>(q + row * q_row + block * kHeads * q_head, q_head, smem_q, scratches[0], heads);
    const int tiles = count_tiles<kGroups>(row_index, width, scratches[0]);
    const int per_split = (tiles + num_splits - 1) / num_splits;
    const int begin = split * per_split, end = min(tiles, begin + per_split);

    auto slot_at = [&](int tile) {
      const int column = tile * kTile + warp * 16 + (lane & 15);
      return tile < end && column < width ? row_index[column] : -1;
    };
    float o[8 / kGroups][8];
#pragma unroll
    for (int m = 0; m < 8 / kGroups; ++m)
#pragma unroll
      for (int i = 0; i < 8; ++i) o[m][i] = 0.f;
    float peak[4], sum[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) peak[i] = -1e30f, sum[i] = 0.f;

    int slots[kStages];  // slots[0] is the tile under work
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
      slots[s] = slot_at(begin + s);
      gather<kFp8, kGroups>(pool, slots[s], stage0 + s * S::kStageBytes, warp, lane, group);
    }
    int next_slot = slot_at(begin + kStages - 1);
    float factor[4];
    int buffer = 0;
    for (int tile = begin; tile < end; ++tile) {
      copies_wait<kStages - 2>();
      proxy_fence();
      __syncthreads();
      if (tile == begin) {
#pragma unroll
        for (int i = 0; i < 4; ++i) factor[i] = scale_log2 * scratches[0].query_scale[2 * t + i % 2 + 8 * (i / 2)];
      }
      const int behind = buffer == 0 ? kStages - 1 : buffer - 1;
      slots[kStages - 1] = next_slot;
      gather<kFp8, kGroups>(pool, next_slot, stage0 + behind * S::kStageBytes, warp, lane, group);
      next_slot = slot_at(tile + kStages);

      const uint32_t stage = stage0 + buffer * S::kStageBytes;
      const uint64_t keys = descriptor(stage);
      float s[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) s[i] = 0.f;
      wgmma_fence();
#pragma unroll
      for (int own = 0; own < S::kPanels / kGroups; ++own) {
        const int panel = kGroups == 1 ? own : group * (S::kPanels / kGroups) + own;
#pragma unroll
        for (int k = 0; k < 4; ++k)
          Wgmma16<kFp8>::ss(s, keys + panel * (kTile * 128 / 16) + k * 2, query + panel * (kHeads * 128 / 16) + k * 2, own + k > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      if constexpr (kGroups == 2) {
#pragma unroll
        for (int i = 0; i < 8; ++i) halves[group][i][mine] = s[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; ++i) s[i] = group == 0 ? s[i] + halves[1][i][mine] : halves[0][i][mine] + s[i];  // alike in both
      }

      const bool valid[2] = {__shfl_sync(~0u, slots[0], g) >= 0, __shfl_sync(~0u, slots[0], g + 8) >= 0};
      float top[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // head 2t + i % 2 + 8 (i / 2)
        const int at = (i / 2) * 4 + i % 2;
#pragma unroll
        for (int r = 0; r < 2; ++r) s[at + 2 * r] = valid[r] ? s[at + 2 * r] * factor[i] : -INFINITY;
        top[i] = fmaxf(s[at], s[at + 2]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], step));
        if (g == 0) scratch.tile_max[warp][2 * t + i % 2 + 8 * (i / 2)] = top[i];
      }
      __syncthreads();
      bool moved = false;
      float shrink[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = 2 * t + i % 2 + 8 * (i / 2);
        float high = fmaxf(fmaxf(scratch.tile_max[0][head], scratch.tile_max[1][head]),
                           fmaxf(scratch.tile_max[2][head], scratch.tile_max[3][head]));
        high = fmaxf(high, peak[i]);
        shrink[i] = exp2f(peak[i] - high);
        moved |= high > peak[i];
        peak[i] = high;
        const int at = (i / 2) * 4 + i % 2;
        const float shift = kFp8 ? kFp8Log2Max - high : -high;
#pragma unroll
        for (int r = 0; r < 2; ++r) s[at + 2 * r] = exp2f(s[at + 2 * r] + shift);
        sum[i] = sum[i] * shrink[i] + s[at] + s[at + 2];
      }
      if (__any_sync(~0u, moved)) {
#pragma unroll
        for (int m = 0; m < 8 / kGroups; ++m)
#pragma unroll
          for (int i = 0; i < 8; ++i) o[m][i] *= shrink[(i / 4) * 2 + i % 2];
      }
      store_probabilities<kFp8>(s, smem_p, warp, lane);
      proxy_fence();
      __syncthreads();
      accumulate<kFp8, kGroups>(o, stage, prob, warp, lane, group);
#pragma unroll
      for (int i = 0; i < kStages - 1; ++i) slots[i] = slots[i + 1];
      buffer = buffer + 1 == kStages ? 0 : buffer + 1;
    }
    copies_wait<0>();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], step);
      if (g == 0) scratch.sum[warp][2 * t + i % 2 + 8 * (i / 2)] = sum[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = 2 * t + i % 2 + 8 * (i / 2);
      const float total = scratch.sum[0][head] + scratch.sum[1][head] + scratch.sum[2][head] + scratch.sum[3][head];
      factor[i] = total > 0.f ? 1.f / total : 0.f;
      if (partial != nullptr && group == 0 && warp == 0 && g == 0 && head < heads)
        lse[(split * static_cast<int64_t>(num_rows) + row) * num_heads + block * kHeads + head] =
            total > 0.f ? peak[i] + log2f(total) - (kFp8 ? kFp8Log2Max : 0.f) : -INFINITY;
    }
    float* target = partial == nullptr
                        ? nullptr
                        : partial + ((split * static_cast<int64_t>(num_rows) + row) * num_heads + block * kHeads) * kLatent;
    store_output<kFp8, kGroups>(o, factor, out + row * out_row + block * kHeads * out_head, target, out_head, heads, warp, lane, group);
    __syncthreads();
  }
}

}  // namespace

#define ENTRY(name, fp8, stages, groups, resident)                                                                                        \
  extern "C" __global__ void __launch_bounds__(groups * kThreads, resident)                                                            \
      name(const __nv_bfloat16* q, int64_t q_row, int64_t q_head, const uint8_t* latent, int64_t page_bytes, int64_t row_bytes,   \
           int page_shift, const int* index, int64_t index_row, int width, __nv_bfloat16* out, int64_t out_row, int64_t out_head, \
           float* partial, float* lse, int num_rows, int num_heads, int num_splits, float scale_log2) {                           \
    attend<fp8, stages, groups>(q, q_row, q_head, Pool{latent, page_bytes, row_bytes, page_shift}, index, index_row, width, out, out_row, \
                        out_head, partial, lse, num_rows, num_heads, num_splits, scale_log2);                                     \
  }

ENTRY(sparse_mla_fp8, true, 2, 1, 3)
ENTRY(sparse_mla_bf16, false, 3, 1, 1)
ENTRY(sparse_mla_paired_bf16, false, 3, 2, 1)
