// What `hopper.cuh` offers, on the fibers of `machine.h`: layouts of fragments and descriptors as the PTX manual has them.
#pragma once
#include "machine.h"

using emulated::machine;
using emulated::self;

inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)); }
inline uint8_t* shared_pointer(uint32_t address) { return reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(address)); }

namespace emulated {
struct Operands { uint32_t a[4], b[2]; };
template <typename T, typename F> inline void with_lanes(T& mine, F&& f) {
  Warp& warp = my_warp();
  warp.value[self->lane] = reinterpret_cast<uint64_t>(&mine);
  meet_warp(~0u);
  f([&](int lane) -> T& { return *reinterpret_cast<T*>(warp.value[lane]); });
  meet_warp(~0u);
}
inline float bf16_of(uint32_t word, int half) { return static_cast<float>(__nv_bfloat16{static_cast<uint16_t>(word >> (16 * half))}); }
inline float e4m3_of(uint8_t byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  const float x = exponent ? std::ldexp(8.f + mantissa, exponent - 10) : std::ldexp(static_cast<float>(mantissa), -9);
  return (byte & 0x7f) == 0x7f ? NAN : byte & 0x80 ? -x : x;
}
}  // namespace emulated

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated::Operands mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const int g = self->lane / 4, t = self->lane % 4;
  emulated::with_lanes(mine, [&](auto at) {
    for (int i = 0; i < 4; ++i) {
      const int row = g + 8 * (i / 2), column = 2 * t + i % 2;
      for (int k = 0; k < 16; ++k) {
        const emulated::Operands &left = at(row % 8 * 4 + k % 8 / 2), &right = at(column * 4 + k % 8 / 2);
        d[i] += emulated::bf16_of(left.a[row / 8 + 2 * (k / 8)], k % 2) * emulated::bf16_of(right.b[k / 8], k % 2);
      }
    }
  });
}

inline void load_matrices(uint32_t (&r)[4], uint32_t address, bool transposed) {
  emulated::with_lanes(address, [&](auto at) {
    for (int m = 0; m < 4; ++m) {
      uint16_t pair[2];
      for (int i = 0; i < 2; ++i) {
        int row = self->lane / 4, column = self->lane % 4 * 2 + i;
        if (transposed) std::swap(row, column);
        std::memcpy(&pair[i], shared_pointer(at(m * 8 + row)) + column * 2, 2);
      }
      std::memcpy(&r[m], pair, 4);
    }
  });
}
inline void ldmatrix(uint32_t (&r)[4], uint32_t address) { load_matrices(r, address, false); }
inline void ldmatrix_t(uint32_t (&r)[4], uint32_t address) { load_matrices(r, address, true); }
inline void stmatrix_t(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  const uint32_t r[4] = {r0, r1, r2, r3};
  emulated::with_lanes(address, [&](auto at) {
    for (int m = 0; m < 4; ++m)
      for (int i = 0; i < 2; ++i) {
        const uint16_t x = static_cast<uint16_t>(r[m] >> (16 * i));
        std::memcpy(shared_pointer(at(m * 8 + self->lane % 4 * 2 + i)) + self->lane / 4 * 2, &x, 2);
      }
  });
}

inline void copy16(uint32_t to, const void* from, bool valid) {
  if (to % 16 || (valid && reinterpret_cast<uintptr_t>(from) % 16)) std::fprintf(stderr, "a copy of 16 bytes is not aligned\n"), std::abort();
  self->copy_groups.back().push_back([=] {
    if (valid) std::memcpy(shared_pointer(to), from, 16);
    else std::memset(shared_pointer(to), 0, 16);
  });
}
inline void copy16_near(uint32_t to, const void* from, bool valid) { copy16(to, from, valid); }
inline void copy4(uint32_t to, const void* from) {
  if (to % 4 || reinterpret_cast<uintptr_t>(from) % 4) std::fprintf(stderr, "a copy of 4 bytes is not aligned\n"), std::abort();
  self->copy_groups.back().push_back([=] { std::memcpy(shared_pointer(to), from, 4); });
}
inline void copies_commit() { self->copy_groups.emplace_back(); }
template <int kLeft> inline void copies_wait() {
  auto& groups = self->copy_groups;
  while (static_cast<int>(groups.size()) - 1 > kLeft) {
    for (auto& copy : groups.front()) copy();
    groups.erase(groups.begin());
  }
}
inline void proxy_fence() {}

namespace emulated {
inline void settle(Barrier& b) {
  if (b.pending == 0 && b.bytes == 0) b.phase ^= 1, b.pending = b.expected, machine.moved = true;
}
inline Barrier& barrier_at(uint32_t address) {
  auto found = machine.barriers.find(address);
  if (found == machine.barriers.end()) std::fprintf(stderr, "a barrier that nobody initialised\n"), std::abort();
  return found->second;
}
}  // namespace emulated

inline void barrier_init(uint32_t barrier, int arrivals) {
  emulated::Barrier fresh;
  fresh.expected = fresh.pending = arrivals;
  machine.barriers[barrier] = fresh;
}
inline void barrier_init_fence() {}
inline void barrier_expect(uint32_t barrier, int bytes) {
  emulated::Barrier& b = emulated::barrier_at(barrier);
  if (b.pending == 0) std::fprintf(stderr, "one arrival too many\n"), std::abort();
  --b.pending, b.bytes += bytes;
  emulated::settle(b);
}
inline void barrier_wait(uint32_t barrier, int parity) {
  emulated::Barrier& b = emulated::barrier_at(barrier);
  emulated::wait_until([&] {
    if (b.phase != parity) return true;  // `parity` is the phase that must be over
    while (!b.copies.empty() && b.phase == parity) {
      auto copy = std::move(b.copies.front());
      b.copies.pop_front();
      copy();
      emulated::settle(b);
    }
    return b.phase != parity;
  });
}
inline void bulk_load(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  if (to % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16 || bytes <= 0) std::fprintf(stderr, "a bulk copy is not aligned\n"), std::abort();
  emulated::Barrier& b = emulated::barrier_at(barrier);
  b.copies.push_back([=, &b] { std::memcpy(shared_pointer(to), from, bytes), b.bytes -= bytes; });
}

inline void bulk_store(void* to, uint32_t from, int bytes) {
  if (from % 16 || reinterpret_cast<uintptr_t>(to) % 16 || bytes % 16 || bytes <= 0) std::fprintf(stderr, "a bulk store is not aligned\n"), std::abort();
  self->store_groups.back().push_back([=] { std::memcpy(to, shared_pointer(from), bytes); });
}
inline void bulk_stores_commit() { self->store_groups.emplace_back(); }
template <int kLeft> inline void bulk_stores_read() {  // as late as may be: what was overwritten before is seen
  auto& groups = self->store_groups;
  while (static_cast<int>(groups.size()) - 1 > kLeft) {
    for (auto& store : groups.front()) store();
    groups.erase(groups.begin());
  }
}

inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_reciprocal(float x) { return 1.f / x; }
inline float fast_rsqrt(float x) { return 1.f / std::sqrt(x); }
inline uint8_t to_e4m3(float x) {
  if (std::isnan(x)) return 0x7f;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float size = std::min(std::fabs(x), 448.f);
  const int exponent = std::max(-6, size > 0.f ? std::ilogb(size) : -6);
  const int eighths = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));  // 8 to 16, or fewer for a subnormal
  return static_cast<uint8_t>(sign | (eighths + (exponent + 6) * 8));
}
inline uint16_t e4m3x2(float first, float second) { return static_cast<uint16_t>(to_e4m3(first) | to_e4m3(second) << 8); }

inline int load_acquire(const int* at) {
  emulated::yield();
  return *static_cast<const volatile int*>(at);
}
inline void prefetch_l2(const void*) {}

inline uint64_t descriptor(uint32_t address) { return address >> 4; }  // in units of 16 bytes, as on the device
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int kLeft> inline void wgmma_wait() {}
template <int kCount> inline void ready(float (&)[kCount]) {}

namespace emulated {
inline uint8_t swizzled(uint64_t descriptor, int row, int byte) {
  uint64_t at = descriptor * 16 + row / 8 * 1024 + row % 8 * 128 + byte;
  at ^= (at >> 7 & 7) << 4;
  return *shared_pointer(static_cast<uint32_t>(at));
}
inline void meet_warpgroup() { meet(self->block->groups[self->linear / 128].meeting, 128); }
}  // namespace emulated

template <int kColumns> struct WgmmaFp8 {
  static void run(float (&d)[kColumns / 2], uint64_t a, uint64_t b, int accumulate) {
    emulated::meet_warpgroup();
    const int warp = self->linear % 128 / 32, g = self->lane / 4, t = self->lane % 4;
    for (int i = 0; i < kColumns / 2; ++i) {
      const int row = warp * 16 + g + 8 * (i / 2 % 2), column = i / 4 * 8 + 2 * t + i % 2;
      float sum = accumulate ? d[i] : 0.f;
      for (int k = 0; k < 32; ++k) sum += emulated::e4m3_of(emulated::swizzled(a, row, k)) * emulated::e4m3_of(emulated::swizzled(b, column, k));
      d[i] = sum;
    }
    emulated::meet_warpgroup();
  }
};

template <bool kFp8> struct Wgmma16 {
  static constexpr int kSize = kFp8 ? 1 : 2, kDepth = 32 / kSize;
  static float value(const uint8_t* bytes) {
    if constexpr (kFp8) return emulated::e4m3_of(*bytes);
    uint16_t bits;
    std::memcpy(&bits, bytes, 2);
    return static_cast<float>(__nv_bfloat16{bits});
  }
  static float stored(uint64_t at, int row, int k) {
    uint8_t bytes[2];
    for (int i = 0; i < kSize; ++i) bytes[i] = emulated::swizzled(at, row, k * kSize + i);
    return value(bytes);
  }
  static void ss(float (&d)[8], uint64_t a, uint64_t b, int accumulate) {
    emulated::meet_warpgroup();
    const int warp = self->linear % 128 / 32, g = self->lane / 4, t = self->lane % 4;
    for (int i = 0; i < 8; ++i) {
      const int row = warp * 16 + g + 8 * (i / 2 % 2), column = i / 4 * 8 + 2 * t + i % 2;
      float sum = accumulate ? d[i] : 0.f;
      for (int k = 0; k < kDepth; ++k) sum += stored(a, row, k) * stored(b, column, k);
      d[i] = sum;
    }
    emulated::meet_warpgroup();
  }
  static void rs(float (&d)[8], const uint32_t (&a)[4], uint64_t b) {
    emulated::meet_warpgroup();
    emulated::Operands mine{{a[0], a[1], a[2], a[3]}, {}};
    const int g = self->lane / 4, t = self->lane % 4;
    emulated::with_lanes(mine, [&](auto at) {
      for (int i = 0; i < 8; ++i) {
        const int half = i / 2 % 2, column = i / 4 * 8 + 2 * t + i % 2;
        for (int k = 0; k < kDepth; ++k) {  // 16 bytes of a row in four lanes' first words, the other 16 in their last
          const emulated::Operands& left = at(g * 4 + k * kSize % 16 / 4);
          d[i] += value(reinterpret_cast<const uint8_t*>(&left.a[half + 2 * (k * kSize / 16)]) + k * kSize % 4) * stored(b, column, k);
        }
      }
    });
    emulated::meet_warpgroup();
  }
};
