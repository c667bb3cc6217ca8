// Runs a kernel's threads as fibers on one CPU core, a cluster of blocks at a time: barriers, shuffles, matrix instructions, asynchronous copies.
//
// A fiber runs until it waits; the order in which fibers run changes with a seed, and asynchronous copies happen only when somebody waits for them, so a
// missing barrier or wait shows as a wrong result. Shared memory starts as 0xFF bytes (NaNs) and lies below 4 GiB, so that its 32-bit addresses are pointers.
// When every fiber waits, the launch ends with a message.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda_bf16.h"

extern "C" void switch_fibers(void** save, void* to);
asm(R"(
.text
.globl switch_fibers
switch_fibers:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

struct Index3 { unsigned x, y, z; };

namespace emulated {

constexpr size_t kStack = 64 * 1024, kSharedBytes = 232448, kStaticBytes = 49152;

struct Meeting { int arrived = 0, generation = 0; };

struct Barrier {  // an mbarrier, by its address
  int expected = 0, pending = 0, phase = 0;
  int64_t bytes = 0;
  std::deque<std::function<void()>> copies;
};

struct Fiber;

struct Warp {
  uint64_t value[32];
  std::map<uint32_t, Meeting> meetings;
  uint32_t alive = 0;
};

struct Group { const void* payload[128]; Meeting meeting; };  // a warpgroup

struct Block {
  Index3 index;
  unsigned rank;
  uint8_t *dynamic, *fixed;
  size_t fixed_used = 0;
  std::map<int, void*> statics;
  std::vector<Warp> warps;
  std::vector<Group> groups;
  Meeting meeting;
  int alive = 0, counted[2] = {0, 0};
};

struct Fiber {
  void* stack_pointer;
  uint8_t* stack;
  Index3 thread;
  Block* block;
  int linear, lane;
  bool done = false;
  std::vector<std::vector<std::function<void()>>> copy_groups{1}, store_groups{1};
};

struct Machine {
  std::vector<Block> blocks;
  std::vector<Fiber> fibers;
  std::vector<uint8_t*> stacks;
  int cluster_alive = 0;
  std::map<uint64_t, Barrier> barriers;
  std::function<void()> kernel;
  Index3 grid, block_size;
  void* scheduler;
  bool moved;
};

inline Machine machine;
inline Fiber* self;

inline void yield() { switch_fibers(&self->stack_pointer, machine.scheduler); }
template <typename F> inline void wait_until(F&& ready) {
  while (!ready()) yield();
  machine.moved = true;
}

inline void meet(Meeting& at, int count) {
  const int mine = at.generation;
  machine.moved = true;
  if (++at.arrived >= count) at.arrived = 0, ++at.generation;
  else wait_until([&] { return at.generation != mine; });
}

inline Warp& my_warp() { return self->block->warps[self->linear / 32]; }
inline void meet_warp(uint32_t mask) {
  Warp& warp = my_warp();
  const uint32_t here = mask & warp.alive;
  if (!(here >> self->lane & 1)) std::fprintf(stderr, "a lane outside its own mask %08x\n", mask), std::abort();
  meet(warp.meetings[mask], __builtin_popcount(here));
}

template <typename T, typename F> inline auto exchange(uint32_t mask, T mine, F&& read) {
  Warp& warp = my_warp();
  static_assert(sizeof(T) <= 8);
  warp.value[self->lane] = 0;
  std::memcpy(&warp.value[self->lane], &mine, sizeof(T));
  meet_warp(mask);
  auto at = [&](int lane) {
    T other;
    std::memcpy(&other, &warp.value[lane], sizeof(T));
    return other;
  };
  auto result = read(at);
  meet_warp(mask);
  return result;
}

inline void finish_fiber() {
  Fiber& f = *self;
  f.done = true;
  machine.moved = true;
  Warp& warp = f.block->warps[f.linear / 32];
  warp.alive &= ~(1u << f.lane);
  --f.block->alive, --machine.cluster_alive;
  // those who already wait must not wait for the dead
  if (f.block->meeting.arrived && f.block->meeting.arrived >= f.block->alive) f.block->meeting.arrived = 0, ++f.block->meeting.generation;
  for (auto& [mask, meeting] : warp.meetings)
    if (meeting.arrived && meeting.arrived >= __builtin_popcount(mask & warp.alive)) meeting.arrived = 0, ++meeting.generation;
}

inline void fiber_main() {
  machine.kernel();
  finish_fiber();
  yield();
  std::abort();
}

template <typename T> inline T& shared(int line) {
  Block& block = *self->block;
  void*& at = block.statics[line];
  if (!at) {
    block.fixed_used = (block.fixed_used + 127) / 128 * 128;
    at = block.fixed + block.fixed_used;
    block.fixed_used += sizeof(T);
    if (block.fixed_used > kStaticBytes) std::fprintf(stderr, "more than 48 KiB of static shared memory\n"), std::abort();
  }
  return *static_cast<T*>(at);
}
inline uint8_t* dynamic_shared() { return self->block->dynamic; }

inline void run_cluster(std::vector<Index3> indices, int threads, unsigned seed) {
  Machine& m = machine;
  const size_t count = indices.size();
  m.blocks.clear();
  m.blocks.resize(count);
  m.barriers.clear();
  static uint8_t* arena = nullptr;
  static size_t arena_blocks = 0;
  if (arena_blocks < count) {
    arena = static_cast<uint8_t*>(mmap(nullptr, count * 524288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0));
    if (arena == MAP_FAILED) std::abort();
    arena_blocks = count;
  }
  std::memset(arena, 0xFF, count * 524288);
  m.fibers.assign(count * threads, Fiber{});
  while (m.stacks.size() < m.fibers.size()) m.stacks.push_back(static_cast<uint8_t*>(std::aligned_alloc(64, kStack)));
  for (size_t b = 0; b < count; ++b) {
    Block& block = m.blocks[b];
    block.index = indices[b], block.rank = static_cast<unsigned>(b);
    block.dynamic = arena + b * 524288, block.fixed = block.dynamic + 262144;
    block.warps.resize((threads + 31) / 32), block.groups.resize((threads + 127) / 128), block.alive = threads;
    for (int t = 0; t < threads; ++t) {
      Fiber& f = m.fibers[b * threads + t];
      f.thread = {t % m.block_size.x, t / m.block_size.x, 0}, f.block = &block, f.linear = t, f.lane = t % 32;
      block.warps[t / 32].alive |= 1u << (t % 32);
      f.stack = m.stacks[b * threads + t];
      uint64_t* top = reinterpret_cast<uint64_t*>(f.stack + kStack) - 2;
      *top = reinterpret_cast<uint64_t>(&fiber_main);  // popped by ret; the stack is then 16-byte aligned plus 8
      f.stack_pointer = top - 6;
    }
  }
  m.cluster_alive = static_cast<int>(m.fibers.size());
  std::vector<size_t> order(m.fibers.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937 random(seed);
  for (int left = m.cluster_alive, idle = 0; left > 0;) {
    std::shuffle(order.begin(), order.end(), random);
    m.moved = false;
    left = 0;
    for (size_t i : order) {
      if (m.fibers[i].done) continue;
      self = &m.fibers[i];
      switch_fibers(&m.scheduler, self->stack_pointer);
      left += !m.fibers[i].done;
    }
    idle = m.moved ? 0 : idle + 1;
    if (left && idle > 3) std::fprintf(stderr, "every thread of a cluster waits: %d of %zu left\n", left, m.fibers.size()), std::abort();
  }
}

template <typename... A, size_t... I> inline void call(void (*kernel)(A...), void** p, std::index_sequence<I...>) {
  machine.kernel = [=] { kernel(*static_cast<std::remove_cv_t<std::remove_reference_t<A>>*>(p[I])...); };
}

template <typename... A> inline void launch(void (*kernel)(A...), void** p, const unsigned* grid, int threads, int cluster, unsigned seed) {
  call(kernel, p, std::index_sequence_for<A...>{});
  machine.grid = {grid[0], grid[1], grid[2]}, machine.block_size = {static_cast<unsigned>(threads), 1, 1};
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; x += cluster) {
        std::vector<Index3> indices;
        for (int i = 0; i < cluster; ++i) indices.push_back({x + i, y, z});
        run_cluster(indices, threads, seed++);
      }
}

}  // namespace emulated

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __cluster_dims__(...)
#define __align__(n) alignas(n)
#define threadIdx (emulated::self->thread)
#define blockIdx (emulated::self->block->index)
#define gridDim (emulated::machine.grid)
#define blockDim (emulated::machine.block_size)

inline void __syncthreads() { emulated::meet(emulated::self->block->meeting, emulated::self->block->alive); }
inline int __syncthreads_count(int predicate) {
  emulated::Block& block = *emulated::self->block;
  block.counted[0] += predicate != 0;
  __syncthreads();
  const int total = block.counted[0];
  __syncthreads();
  block.counted[0] = 0;
  __syncthreads();
  return total;
}
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) > 0; }
inline void __syncwarp(uint32_t mask = ~0u) { emulated::meet_warp(mask); }
inline void __threadfence() {}
template <typename T> inline T __shfl_xor_sync(uint32_t mask, T x, int lane) { return emulated::exchange(mask, x, [&](auto at) { return at(emulated::self->lane ^ lane); }); }
template <typename T> inline T __shfl_sync(uint32_t mask, T x, int lane, int width = 32) {
  return emulated::exchange(mask, x, [&](auto at) { return at(emulated::self->lane / width * width + lane % width); });
}
template <typename T> inline T __shfl_up_sync(uint32_t mask, T x, int step) {
  return emulated::exchange(mask, x, [&](auto at) { return emulated::self->lane >= step ? at(emulated::self->lane - step) : x; });
}
template <typename T> inline T __shfl_down_sync(uint32_t mask, T x, int step) {
  return emulated::exchange(mask, x, [&](auto at) { return emulated::self->lane + step < 32 ? at(emulated::self->lane + step) : x; });
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
  return emulated::exchange(mask, static_cast<uint32_t>(predicate != 0), [&](auto at) {
    uint32_t bits = 0;
    for (int lane = 0; lane < 32; ++lane)
      if (mask & emulated::my_warp().alive & (1u << lane)) bits |= at(lane) << lane;
    return bits;
  });
}
inline int __any_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
template <typename T, typename F> inline T reduce_warp(uint32_t mask, T x, F&& f) {
  return emulated::exchange(mask, x, [&](auto at) {
    T total = x;
    for (int lane = 0; lane < 32; ++lane)
      if (lane != emulated::self->lane && (mask & emulated::my_warp().alive & (1u << lane))) total = f(total, at(lane));
    return total;
  });
}
template <typename T> inline T __reduce_add_sync(uint32_t mask, T x) { return reduce_warp(mask, x, [](T a, T b) { return static_cast<T>(a + b); }); }
template <typename T> inline T __reduce_min_sync(uint32_t mask, T x) { return reduce_warp(mask, x, [](T a, T b) { return std::min(a, b); }); }
template <typename T> inline T __reduce_max_sync(uint32_t mask, T x) { return reduce_warp(mask, x, [](T a, T b) { return std::max(a, b); }); }
template <typename T> inline T atomicAdd(T* at, T x) { const T old = *at; *at = old + x; return old; }
template <typename T> inline T atomicMax(T* at, T x) { const T old = *at; *at = std::max(old, x); return old; }
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t select) {
  uint8_t bytes[8];
  std::memcpy(bytes, &x, 4), std::memcpy(bytes + 4, &y, 4);
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(bytes[select >> (4 * i) & 7]) << (8 * i);
  return out;
}
inline uint32_t __float_as_uint(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
inline float __uint_as_float(uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __frsqrt_rn(float x) { return 1.f / std::sqrt(x); }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
template <typename T> inline T __ldcg(const T* at) { return *at; }
template <typename T> inline T __ldcs(const T* at) { return *at; }
template <typename T> inline T __ldg(const T* at) { return *at; }
template <typename T> inline void __stcs(T* at, T x) { *at = x; }
using std::max;
using std::min;
template <typename T> inline T max(T a, T b, T c) { return std::max(std::max(a, b), c); }
