// Kernels with one fault each, and one without: what a sanitizer must report, and must not.

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
