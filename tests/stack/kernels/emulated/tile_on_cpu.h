// What TileLang's generated sources use, on the fibers of `machine.h`: its own device functions, and CUDA's small types and conversions.
#pragma once
#include "hopper_on_cpu.h"

#define CUDART_INF_F INFINITY

typedef unsigned char uchar;
typedef uint8_t __nv_fp8x2_bytes[2];
typedef uint16_t __nv_fp8x2_storage_t;
struct alignas(4) uint1 { uint32_t x; };
enum { __NV_SATFINITE, __NV_E4M3 };

struct fp8_e4_t { uint8_t byte; };
struct alignas(2) fp8_e4_2_t { uint8_t bytes[2]; };
struct alignas(4) fp8_e4_4_t { uint8_t bytes[4]; };
struct alignas(8) fp8_e4_8_t { uint8_t bytes[8]; };
struct alignas(16) fp8_e4_16_t { uint8_t bytes[16]; };

struct bfloat16_t : __nv_bfloat16 {
  bfloat16_t() = default;
  explicit bfloat16_t(float x) : __nv_bfloat16(__float2bfloat16(x)) {}
};

struct half_t {  // IEEE half precision, rounded to nearest even
  uint16_t bits;
  half_t() = default;
  explicit half_t(float x) {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const float size = std::fabs(x);
    if (!(size < 65520.f)) bits = static_cast<uint16_t>(sign | (std::isnan(x) ? 0x7e00 : 0x7c00));
    else {
      const int exponent = std::max(-14, size > 0.f ? std::ilogb(size) : -14);
      const int parts = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));  // 1024 to 2048, or fewer for a subnormal
      bits = static_cast<uint16_t>(sign | (parts + (exponent + 14) * 1024));
    }
  }
  explicit operator float() const {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float size = exponent == 31 ? (mantissa ? NAN : INFINITY)
                       : exponent     ? std::ldexp(1024.f + mantissa, exponent - 25)
                                      : std::ldexp(static_cast<float>(mantissa), -24);
    return bits & 0x8000 ? -size : size;
  }
};
struct alignas(4) half2 { half_t x, y; };

inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __floats2bfloat162_rn(v.x, v.y); }
inline half2 __float22half2_rn(float2 v) { return {half_t(v.x), half_t(v.y)}; }
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, int, int) { return e4m3x2(v.x, v.y); }
inline half2 __tl_cvt_fp8x2_to_half2(__nv_fp8x2_storage_t v, int) {
  return {half_t(emulated::e4m3_of(static_cast<uint8_t>(v))), half_t(emulated::e4m3_of(static_cast<uint8_t>(v >> 8)))};
}

namespace tl {

enum class DataType { kBFloat16, kFloat16, kFloat8_e4m3, kFloat32 };

inline float value_at(const uint8_t* at, DataType type) {
  if (type == DataType::kFloat8_e4m3) return emulated::e4m3_of(*at);
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  if (type == DataType::kBFloat16) return static_cast<float>(__nv_bfloat16{bits});
  half_t half;
  half.bits = bits;
  return static_cast<float>(half);
}

template <int kBytes> inline void cp_async_gs(const void* to, const void* from) {
  static_assert(kBytes == 16);
  copy16(shared_address(to), from, true);
}
inline void cp_async_commit() { copies_commit(); }
template <int kLeft> inline void cp_async_wait() { copies_wait<kLeft>(); }

template <int kMatrices, bool kTransposed> inline void matrices(const void* at, void* to) {
  uint32_t r[4];
  load_matrices(r, shared_address(at), kTransposed);
  std::memcpy(to, r, kMatrices * 4);
}
// Lanes beyond the matrices' rows may name any address: the emulation reads it, so it must be one of shared memory, which it is.
inline void ptx_ldmatrix_x2(const void* at, void* to) { matrices<2, false>(at, to); }
inline void ptx_ldmatrix_x4(const void* at, void* to) { matrices<4, false>(at, to); }
inline void ptx_ldmatrix_x4_trans(const void* at, void* to) { matrices<4, true>(at, to); }

// m16n8: a row of 32 bytes of A lies in a lane quartet's words 0 and 2 (rows g) or 1 and 3 (rows g + 8); a column of B in words 0 and 1.
template <DataType kA, DataType kB, DataType kC, int kM, int kN, int kK, bool kTransA, bool kTransB>
inline void mma_sync(float* c, const unsigned* a, const unsigned* b) {
  constexpr int kSize = kA == DataType::kFloat8_e4m3 ? 1 : 2;
  static_assert(kA == kB && kM == 16 && kN == 8 && kK * kSize == 32 && !kTransA && kTransB);
  emulated::Operands mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const int g = self->lane / 4, t = self->lane % 4;
  emulated::with_lanes(mine, [&](auto at) {
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2, column = 2 * t + i % 2;
      for (int k = 0; k < kK; ++k) {
        const int byte = k * kSize, word = byte / 16, quarter = byte % 16 / 4;
        const emulated::Operands &left = at(g * 4 + quarter), &right = at(column * 4 + quarter);
        c[i] += value_at(reinterpret_cast<const uint8_t*>(&left.a[half + 2 * word]) + byte % 4, kA) *
                value_at(reinterpret_cast<const uint8_t*>(&right.b[word]) + byte % 4, kB);
      }
    }
  });
}

// Rows of 128 bytes, swizzled in groups of eight, all in units of 16 bytes: `stride` from one group to the next, and where an operand lies
// transposed, so that a row goes on beyond its 128 bytes, `leading` from one part of it to the next.
struct GmmaDescriptor {
  uint32_t start = 0;
  uint16_t stride = 0, leading = 0;
  GmmaDescriptor operator+(int units) const { return {start + units, stride, leading}; }
  explicit operator uint64_t() const { return static_cast<uint64_t>(leading) << 48 | static_cast<uint64_t>(stride) << 32 | start; }
};
template <int kLayout, int kLeading, int kStride> inline void initialize_wgmma_descriptor(GmmaDescriptor& d, const void* at) {
  static_assert(kLayout == 1, "the 128-byte swizzle");
  if (shared_address(at) % 1024) std::fprintf(stderr, "an operand of a warpgroup's product is not aligned\n"), std::abort();
  d = {shared_address(at) / 16, kStride, kLeading};
}
template <typename T> inline void increase_descriptor_offset(GmmaDescriptor& d, T bytes) { d.start += bytes / 16; }

inline float swizzled_value(uint64_t descriptor, int row, int byte, DataType type) {
  uint64_t at = (descriptor & 0xffffffff) * 16 + row / 8 * (descriptor >> 32 & 0xffff) * 16 + row % 8 * 128 + byte % 128;
  at += byte / 128 * (descriptor >> 48) * 16;
  at ^= (at >> 7 & 7) << 4;
  return value_at(shared_pointer(static_cast<uint32_t>(at)), type);
}

template <DataType kA, DataType kB, DataType kC, int kM, int kN, int kK, bool kTransA, bool kTransB, int kScaleA, int kScaleB>
inline void wgmma_ss(uint64_t a, uint64_t b, uint32_t* c, int accumulate) {
  constexpr int kSize = kA == DataType::kFloat8_e4m3 ? 1 : 2;
  static_assert(kA == kB && kM == 64 && kK * kSize == 32 && kScaleA == 1 && kScaleB == 1);
  static_assert(!(kTransA || kTransB) || kSize == 2, "one-byte operands are taken as they lie");
  emulated::meet_warpgroup();
  float* d = reinterpret_cast<float*>(c);
  const int warp = self->linear % 128 / 32, g = self->lane / 4, t = self->lane % 4;
  for (int i = 0; i < kN / 2; ++i) {
    const int row = warp * 16 + g + 8 * (i / 2 % 2), column = i / 4 * 8 + 2 * t + i % 2;
    float sum = accumulate ? d[i] : 0.f;
    for (int k = 0; k < kK; ++k)
      sum += (kTransA ? swizzled_value(a, k, row * kSize, kA) : swizzled_value(a, row, k * kSize, kA)) *
             (kTransB ? swizzled_value(b, k, column * kSize, kB) : swizzled_value(b, column, k * kSize, kB));
    d[i] = sum;
  }
  emulated::meet_warpgroup();
}
template <typename T> inline void warpgroup_fence_operand(T*, int) {}
inline void warpgroup_arrive() {}
inline void warpgroup_commit_batch() {}
template <int kLeft> inline void warpgroup_wait() {}
inline void fence_proxy_async() {}

struct SumOp { float operator()(float x, float y) const { return x + y; } };
struct MaxOp { float operator()(float x, float y) const { return std::fmax(x, y); } };
template <int kThreads> struct NamedBarrier {  // of the whole block
  static void sync() {
    if (static_cast<int>(machine.block_size.x) != kThreads) std::fprintf(stderr, "a barrier of a part of the block\n"), std::abort();
    __syncthreads();
  }
};

// All of `kThreads` neighbours whose places differ in bits from `kScale` on.
template <class Reducer, int kThreads, int kScale, int kOffset, class Barrier, int kBatch = 1, int kStride = 0> struct AllReduce {
  static float run(float x, float* scratch = nullptr) {
    for (int step = kThreads / 2; step >= kScale; step /= 2) {
      if (step < 32) {
        x = Reducer()(x, __shfl_xor_sync(~0u, x, step));
        continue;
      }
      Barrier::sync();
      scratch[self->linear - kOffset] = x;
      Barrier::sync();
      x = Reducer()(x, scratch[(self->linear - kOffset) ^ step]);
    }
    return x;
  }
  static void run_batch(float* x, float* scratch = nullptr) {
    for (int step = kThreads / 2; step >= kScale; step /= 2) {
      if (step < 32) {
        for (int i = 0; i < kBatch; ++i) x[i] = Reducer()(x[i], __shfl_xor_sync(~0u, x[i], step));
        continue;
      }
      Barrier::sync();
      for (int i = 0; i < kBatch; ++i) scratch[self->linear - kOffset + i * kStride] = x[i];
      Barrier::sync();
      for (int i = 0; i < kBatch; ++i) x[i] = Reducer()(x[i], scratch[((self->linear - kOffset) ^ step) + i * kStride]);
    }
  }
};

}  // namespace tl
