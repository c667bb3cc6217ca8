// For warps of one block that do different work: barriers that some arrive at and others wait for, registers that some leave to others. Knows no op.
#pragma once
#include <cstdint>

#ifdef KERNELS_ON_CPU
#include <roles_on_cpu.h>
#else

// What the arriving thread did before is seen by those who waited.
__device__ __forceinline__ void arrive(uint32_t barrier) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory"); }

// Until the phase of this parity is over. For threads of this block: unlike `barrier_wait`, it leaves the L1 cache alone.
__device__ __forceinline__ void wait_here(uint32_t barrier, int parity) {
  asm volatile("{.reg .pred done;\n"
               "again: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;}\n" ::"r"(barrier), "r"(parity) : "memory");
}

// Registers a thread of this warpgroup from here on; all four warps ask together.
template <int kRegisters> __device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters)); }
template <int kRegisters> __device__ __forceinline__ void leave_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters)); }

// A barrier among the `kCount` threads of some warps; `kName` 1 to 15, 0 is the whole block's.
template <int kName, int kCount> __device__ __forceinline__ void sync_some() { asm volatile("bar.sync %0, %1;" ::"n"(kName), "n"(kCount) : "memory"); }

#endif

// One lane arrives for its warp, which a barrier of the warp before it allows: what its other lanes did is ordered through that barrier. A race checker that
// follows arrivals alone does not see it, so for one every lane arrives (`tools/gpu/sanitize`, where `planted_elected` shows which kind a checker is).
#ifndef EVERY_LANE_ARRIVES
#define EVERY_LANE_ARRIVES 0
#endif
constexpr int kArrivals = EVERY_LANE_ARRIVES ? 32 : 1;  // of a warp
__device__ __forceinline__ void arrive_for_warp(uint32_t barrier, int lane) {
  if (EVERY_LANE_ARRIVES || lane == 0) arrive(barrier);
}
