// Short convolution, SiLU, q/k norm and packing for prefill, one read and one write of every row.
//
// A thread owns eight neighbouring channels and walks down 32 rows with the last three inputs in registers; sixteen lanes share a head of a part,
// so its norm is four shuffles. Windows are read here and moved by a second launch: the blocks of a request run in no fixed order.
#include <cuda_bf16.h>
#include <cstdint>

#include "../bf16.cuh"
#include "../hopper.cuh"

namespace {

constexpr int kD = 128, kRows = 32, kThreads = 256, kAhead = 3, kLongRows = 64, kFarAhead = 6;

}  // namespace

struct ConvArguments {
  const __nv_bfloat16* x;
  const float* weight;
  __nv_bfloat16* conv;
  const int *slot, *start, *request;
  const uint8_t* has_state;
  __nv_bfloat16 *q, *k, *v;
  int64_t x_row, conv_slot, conv_head;
  int rows, heads, norm;
  float scale;
};

namespace {

// Rows of any requests, with exact divisions: what the unfused chain computes too.
__device__ __forceinline__ void any_rows(const ConvArguments& a, int channel, int first_row, int last_row) {
  const int part = channel / (a.heads * kD), head = channel / kD % a.heads, d = channel % kD;
  float tap[8][4];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const float4 w = *reinterpret_cast<const float4*>(a.weight + (channel + c) * 4);
    tap[c][0] = w.x, tap[c][1] = w.y, tap[c][2] = w.z, tap[c][3] = w.w;
  }
  __nv_bfloat16* out = (part == 0 ? a.q : part == 1 ? a.k : a.v) + head * kD + d;
  const int64_t out_row = static_cast<int64_t>(a.heads) * kD;
  const __nv_bfloat16* x = a.x + channel;
  float past[3][8];
  int owner = -1, begin = 0, end = 0, slot = 0;

  // the three inputs before `row` of its request: rows of this pass, else the window, else zeros
  auto look_back = [&](int row) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int source = row - 3 + i;
#pragma unroll
      for (int c = 0; c < 8; ++c) past[i][c] = 0.f;
      if (source >= begin) {
        unpack(*reinterpret_cast<const uint4*>(x + source * a.x_row), past[i]);
      } else if (slot > 0 && a.has_state[owner]) {
        const __nv_bfloat16* window = a.conv + slot * a.conv_slot + head * a.conv_head + (part * kD + d) * 3 + source - begin + 3;
#pragma unroll
        for (int c = 0; c < 8; ++c) past[i][c] = __bfloat162float(window[c * 3]);
      }
    }
  };
  uint4 ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    ahead[i] = first_row + i < last_row ? *reinterpret_cast<const uint4*>(x + (first_row + i) * a.x_row) : make_uint4(0, 0, 0, 0);
  for (int base = first_row; base < last_row; base += kAhead) {
#pragma unroll
    for (int step = 0; step < kAhead; ++step) {
      const int row = base + step;
      if (row >= last_row) break;
      float now[8], u[8];
      unpack(ahead[step], now);
      if (row + kAhead < last_row) ahead[step] = *reinterpret_cast<const uint4*>(x + (row + kAhead) * a.x_row);
      const int request = a.request[row];
      if (request != owner) {
        owner = request, begin = a.start[request], end = a.start[request + 1], slot = a.slot[request];
        look_back(row);
      }
      if (slot == 0 || row < begin || row >= end) {
        *reinterpret_cast<uint4*>(out + row * out_row) = make_uint4(0, 0, 0, 0);
        continue;  // uniform over the block
      }
      float square = 0.f;
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float y = past[0][c] * tap[c][0] + past[1][c] * tap[c][1] + past[2][c] * tap[c][2] + now[c] * tap[c][3];
        u[c] = __bfloat162float(__float2bfloat16(__fdividef(y, 1.f + __expf(-y))));
        past[0][c] = past[1][c], past[1][c] = past[2][c], past[2][c] = now[c];
        square += u[c] * u[c];
      }
      if (a.norm) {
#pragma unroll
        for (int lane = 1; lane < 16; lane *= 2) square += __shfl_xor_sync(0xffffu << (threadIdx.x & 16), square, lane);
        if (part < 2) {
          const float gain = __fdiv_rn(part == 0 ? a.scale : 1.f, sqrtf(square + 1e-6f));
#pragma unroll
          for (int c = 0; c < 8; ++c) u[c] *= gain;
        }
      }
      *reinterpret_cast<uint4*>(out + row * out_row) = pack(u);
    }
  }
}

// Rows of one request: nothing is looked up a row, six rows are on their way, and exponentials, divisions and roots are single instructions.
template <bool kNorm> __device__ __forceinline__ void one_request(const ConvArguments& a, int channel, int first_row, int last_row, float scale) {
  const int part = channel / (a.heads * kD), head = channel / kD % a.heads, d = channel % kD;
  const int owner = a.request[first_row], begin = a.start[owner], slot = a.slot[owner];
  const __nv_bfloat16* x = a.x + channel + first_row * a.x_row;
  uint4 ahead[kFarAhead];
#pragma unroll
  for (int i = 0; i < kFarAhead; ++i) ahead[i] = first_row + i < last_row ? __ldcs(reinterpret_cast<const uint4*>(x + i * a.x_row)) : make_uint4(0, 0, 0, 0);
  float tap[8][4], past[3][8];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const float4 w = *reinterpret_cast<const float4*>(a.weight + (channel + c) * 4);
    tap[c][0] = w.x, tap[c][1] = w.y, tap[c][2] = w.z, tap[c][3] = w.w;
  }
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int source = first_row - 3 + i;
#pragma unroll
    for (int c = 0; c < 8; ++c) past[i][c] = 0.f;
    if (source >= begin) {
      unpack(*reinterpret_cast<const uint4*>(x + (i - 3) * a.x_row), past[i]);
    } else if (a.has_state[owner]) {
      const __nv_bfloat16* window = a.conv + slot * a.conv_slot + head * a.conv_head + (part * kD + d) * 3 + source - begin + 3;
#pragma unroll
      for (int c = 0; c < 8; ++c) past[i][c] = __bfloat162float(window[c * 3]);
    }
  }
  const int64_t out_row = static_cast<int64_t>(a.heads) * kD;
  __nv_bfloat16* out = (part == 0 ? a.q : part == 1 ? a.k : a.v) + head * kD + d + first_row * out_row;
  const int count = last_row - first_row;
  for (int base = 0; base < count; base += kFarAhead) {
#pragma unroll
    for (int step = 0; step < kFarAhead; ++step) {
      const int row = base + step;
      if (row >= count) break;
      float now[8], u[8];
      unpack(ahead[step], now);
      if (row + kFarAhead < count) ahead[step] = __ldcs(reinterpret_cast<const uint4*>(x + (row + kFarAhead) * a.x_row));
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float y = past[0][c] * tap[c][0] + past[1][c] * tap[c][1] + past[2][c] * tap[c][2] + now[c] * tap[c][3];
        u[c] = y * fast_reciprocal(1.f + fast_exp2(y * -1.4426950408889634f));
        past[0][c] = past[1][c], past[1][c] = past[2][c], past[2][c] = now[c];
      }
      uint4 packed = pack(u);
      if constexpr (kNorm) {
        unpack(packed, u);
        float square = 0.f;
#pragma unroll
        for (int c = 0; c < 8; ++c) square += u[c] * u[c];
#pragma unroll
        for (int lane = 1; lane < 16; lane *= 2) square += __shfl_xor_sync(0xffffu << (threadIdx.x & 16), square, lane);
        const float gain = scale * fast_rsqrt(square + 1e-6f);
#pragma unroll
        for (int c = 0; c < 8; ++c) u[c] *= gain;
        packed = pack(u);
      }
      *reinterpret_cast<uint4*>(out + row * out_row) = packed;
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 2) kda_conv(const __grid_constant__ ConvArguments a) {
  const int group = blockIdx.y * kThreads + threadIdx.x, first_row = blockIdx.x * kRows;
  if (group >= 3 * a.heads * kD / 8) return;  // whole warps: groups are a multiple of 48
  any_rows(a, group * 8, first_row, min(a.rows, first_row + kRows));
}

// The same for longer blocks of rows, by the quick way where a block's rows are one request's.
extern "C" __global__ void __launch_bounds__(kThreads, 2) kda_conv_long(const __grid_constant__ ConvArguments a) {
  const int group = blockIdx.y * kThreads + threadIdx.x, first_row = blockIdx.x * kLongRows, last_row = min(a.rows, first_row + kLongRows);
  if (group >= 3 * a.heads * kD / 8) return;
  const int owner = a.request[first_row], channel = group * 8, part = channel / (a.heads * kD);
  const bool is_one = a.request[last_row - 1] == owner && a.slot[owner] > 0 && first_row >= a.start[owner] && last_row <= a.start[owner + 1];
  if (!is_one) any_rows(a, channel, first_row, last_row);
  else if (part < 2) one_request<true>(a, channel, first_row, last_row, part == 0 ? a.scale : 1.f);
  else one_request<false>(a, channel, first_row, last_row, 1.f);
}

// The norm alone, of contiguous head rows [rows, 128]: the last step of the unfused chain, with the same sums in the same order.
extern "C" __global__ void __launch_bounds__(kThreads) kda_head_norm(const __nv_bfloat16* x, __nv_bfloat16* y, int64_t head_rows, float scale) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (at >= head_rows * kD) return;
  float u[8], square = 0.f;
  unpack(*reinterpret_cast<const uint4*>(x + at), u);
#pragma unroll
  for (int c = 0; c < 8; ++c) square += u[c] * u[c];
#pragma unroll
  for (int lane = 1; lane < 16; lane *= 2) square += __shfl_xor_sync(0xffffu << (threadIdx.x & 16), square, lane);
  const float gain = __fdiv_rn(scale, sqrtf(square + 1e-6f));
#pragma unroll
  for (int c = 0; c < 8; ++c) u[c] *= gain;
  *reinterpret_cast<uint4*>(y + at) = pack(u);
}

// The last three inputs of each request into its window. One block a (request, head and part), a thread a channel.
extern "C" __global__ void __launch_bounds__(kD) kda_move_windows(const __grid_constant__ ConvArguments a) {
  const int request = blockIdx.x, part = blockIdx.y / a.heads, head = blockIdx.y % a.heads, d = threadIdx.x;
  const int slot = a.slot[request], begin = a.start[request], end = a.start[request + 1];
  if (slot == 0 || end <= begin) return;
  __nv_bfloat16* window = a.conv + slot * a.conv_slot + head * a.conv_head + (part * kD + d) * 3;
  const bool resumes = a.has_state[request];
  const __nv_bfloat16* x = a.x + (part * a.heads + head) * kD + d;
  __nv_bfloat16 next[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int source = end - 3 + i;
    next[i] = source >= begin ? x[source * a.x_row] : resumes ? window[source - begin + 3] : __float2bfloat16(0.f);
  }
#pragma unroll
  for (int i = 0; i < 3; ++i) window[i] = next[i];
}
