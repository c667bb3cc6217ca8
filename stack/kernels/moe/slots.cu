// A fixed number of slots an expert, filled from the front: where each (token, choice) goes, its quantised copy to there, and the activation between the
// products over the slots that are taken. Scales lie expert by expert, MN-major within one. The order of an expert's rows is not fixed; no result depends on it.
#include <cuda_bf16.h>
#include <cstdint>

#include "../hopper.cuh"
#include "encode.cuh"

namespace {
constexpr int kThreads = 1024, kMaxExperts = 1024;
}  // namespace

// One block. position[i]: expert * capacity + slot of entry i, or -1; taken[e]: slots of the expert that are.
extern "C" __global__ void __launch_bounds__(kThreads) moe_take_slots(const int* ids, int entries, int experts, int capacity, int* position, int* taken) {
  __shared__ int count[kMaxExperts];
  count[threadIdx.x] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < entries; i += kThreads) {
    const int id = ids[i], slot = id >= 0 ? atomicAdd(&count[id], 1) : 0;
    position[i] = id >= 0 && slot < capacity ? id * capacity + slot : -1;
  }
  __syncthreads();
  if (threadIdx.x < experts) taken[threadIdx.x] = min(count[threadIdx.x], capacity);
}

// One block a token: codes and scales of its row, to each of its slots.
extern "C" __global__ void moe_fill_slots(const __nv_bfloat16* x, int64_t x_row, const int* position, int choices, int width, int capacity, uint8_t* codes,
                                          float* scales) {
  spread_token(x + blockIdx.x * x_row, position + static_cast<int64_t>(blockIdx.x) * choices, choices, width, codes,
               [=](int64_t row, int group) { return scales + (row / capacity * (width / 128) + group) * capacity + row % capacity; });
}

// One block a slot: the clamped product of its gates and ups, rounded as the chain does, then codes and scales; slots that are not taken are left alone.
extern "C" __global__ void moe_activate_slots(const __nv_bfloat16* gate_up, const int* taken, int width, int capacity, float limit, uint8_t* codes,
                                              float* scales) {
  const int64_t row = blockIdx.x;
  const int expert = blockIdx.x / capacity, slot = blockIdx.x % capacity;
  if (slot >= taken[expert]) return;
  for (int channel = threadIdx.x * 16; channel < width; channel += blockDim.x * 16) {
    float gate[16], up[16];
    uint4 packed;
    load16(gate_up + row * 2 * width + channel, gate);
    load16(gate_up + row * 2 * width + width + channel, up);
    activate16(gate, up, limit);
    const float scale = encode16(gate, packed);
    *reinterpret_cast<uint4*>(codes + row * width + channel) = packed;
    if (channel % 128 == 0) scales[(static_cast<int64_t>(expert) * (width / 128) + channel / 128) * capacity + slot] = scale;
  }
}
