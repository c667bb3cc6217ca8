// What `roles.cuh` offers, on the fibers of `machine.h`.
#pragma once
#include "hopper_on_cpu.h"

inline void arrive(uint32_t barrier) { barrier_expect(barrier, 0); }
inline void wait_here(uint32_t barrier, int parity) { barrier_wait(barrier, parity); }
template <int kRegisters> inline void take_registers() {}
template <int kRegisters> inline void leave_registers() {}
template <int kName, int kCount> inline void sync_some() {
  static std::map<const emulated::Block*, emulated::Meeting> meetings;  // one of each name and count
  emulated::meet(meetings[self->block], kCount);
}
