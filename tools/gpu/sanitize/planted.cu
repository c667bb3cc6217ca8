// Kernels with one fault each, and some without: what a sanitizer must report, and must not.
#include "../../../stack/kernels/hopper.cuh"
#include "../../../stack/kernels/roles.cuh"

extern "C" __global__ void planted_clean(int *out, int size) {
  if (threadIdx.x < size) out[threadIdx.x] = threadIdx.x;
}

extern "C" __global__ void planted_overrun(int *out, int size) { out[size + threadIdx.x] = 1; }

extern "C" __global__ void planted_race(int *out, int size) {
  __shared__ int row[64];
  row[threadIdx.x] = out[threadIdx.x];
  out[threadIdx.x] = row[threadIdx.x ^ 32];  // the other warp's value, which nothing says is there
}

extern "C" __global__ void planted_barrier(int *out, int size) {
  if (threadIdx.x % 2) __syncthreads();
  out[threadIdx.x] = 1;
}

// A warp's values read by another, behind arrivals at a barrier.
template <bool kEvery> __device__ __forceinline__ void hand_over(int *out) {
  __shared__ int row[32];
  __shared__ uint64_t full;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) barrier_init(shared_address(&full), kEvery ? 32 : 1), barrier_init_fence();
  __syncthreads();
  if (threadIdx.x < 32) {
    row[lane] = out[lane];
    __syncwarp();
    if (kEvery || lane == 0) arrive(shared_address(&full));
  } else {
    wait_here(shared_address(&full), 0);
    out[threadIdx.x] = row[lane ^ 1];
  }
}

extern "C" __global__ void planted_arrivals(int *out, int size) { hand_over<true>(out); }

// As much without a fault: the barrier of the warp orders what its other lanes did before the one arrival.
extern "C" __global__ void planted_elected(int *out, int size) { hand_over<false>(out); }
