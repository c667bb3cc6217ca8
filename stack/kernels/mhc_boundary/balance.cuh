// The balance of a mixing matrix: columns, then rows and columns in turn, until each sums to one but for `hc_eps`.
#pragma once
#include "../hopper.cuh"

namespace {

// `c` in registers, its rows already divided by their sums; 16 values go to `out`.
__device__ __forceinline__ void write_balanced(float (&c)[4][4], float hc_eps, int iters, float* out) {
  auto columns = [&] {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float down = fast_reciprocal((c[0][j] + c[1][j]) + (c[2][j] + c[3][j]) + hc_eps);
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i][j] *= down;
    }
  };
  columns();
#pragma unroll 1
  for (int pass = 1; pass < iters; ++pass) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float across = fast_reciprocal((c[i][0] + c[i][1]) + (c[i][2] + c[i][3]) + hc_eps);
#pragma unroll
      for (int j = 0; j < 4; ++j) c[i][j] *= across;
    }
    columns();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) *reinterpret_cast<float4*>(out + i * 4) = make_float4(c[i][0], c[i][1], c[i][2], c[i][3]);
}

}  // namespace
