// 16 bytes that blocks of one launch hand to each other through the L2 cache, each read whole or not at all. Knows no op.
//
// A value carries its own tag, so a reader asks for the data alone: no flag, no fence, one trip for the store and one for the load.
#pragma once
#include <cstdint>

#ifdef KERNELS_ON_CPU
#include <exchange_on_cpu.h>
#else

__device__ __forceinline__ void store_whole(uint4* at, uint4 x) {
  asm volatile("{.reg .b64 low, high;\n.reg .b128 whole;\n"
               "mov.b64 low, {%1, %2};\nmov.b64 high, {%3, %4};\nmov.b128 whole, {low, high};\n"
               "st.relaxed.gpu.global.b128 [%0], whole;}\n" ::"l"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

__device__ __forceinline__ uint4 load_whole(const uint4* at) {
  uint4 x;
  asm volatile("{.reg .b64 low, high;\n.reg .b128 whole;\n"
               "ld.relaxed.gpu.global.b128 whole, [%4];\nmov.b128 {low, high}, whole;\n"
               "mov.b64 {%0, %1}, low;\nmov.b64 {%2, %3}, high;}\n" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(at) : "memory");
  return x;
}

// For a value that never comes: the launch ends with an error, where it would hang.
__device__ __forceinline__ void give_up() { __trap(); }

#endif
