// Sampling without a sort, one block a row: a set that is kept (top-k, top-p, min-p) is a prefix in descending order of logits, ties by id, so each cut and
// the draw itself are a logit's bits found from the top down, 32 sums over the row, and a rank among equals. Sums run in FP64 in a fixed
// order, so that a row's token depends on nothing but the row. Greedy rows end after the arg max.
#include <cuda_bf16.h>
#include <cstdint>

#include "../hopper.cuh"
#include "../sortable.cuh"

namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr double kAll = 1e30;  // ranks of a cut that keeps every tie

struct Shared {
  double part[2][kWarps];
  uint64_t best[kWarps];
  int count[kWarps];
};

// Keys above `key` are kept, and the first `ties` of those equal to it.
struct Cut {
  uint32_t key;
  double ties;
};

struct Row {
  const float* logits;
  int size;
  float peak, pace;  // weights are 2^((logit - peak) pace)
  Shared& shared;
  int turn;

  __device__ __forceinline__ float weight(uint32_t key) const { return exp2f((unsorted(key) - peak) * pace); }

  // Sum over the row of `value(key)`, the same in every thread.
  template <typename F> __device__ __forceinline__ double sum(F&& value) {
    double mine = 0.;
    for (int i = threadIdx.x; i < size; i += kThreads) mine += value(sortable(logits[i]));
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) mine += __shfl_xor_sync(~0u, mine, lane);
    turn ^= 1;  // two places in turn, so that one barrier a sum is enough
    if (threadIdx.x % 32 == 0) shared.part[turn][threadIdx.x / 32] = mine;
    __syncthreads();
    double total = 0.;
    for (int w = 0; w < kWarps; ++w) total += shared.part[turn][w];
    return total;
  }

  // The cut behind the first element whose sum, it and all before it, reaches `goal` (exceeds it where `strictly`).
  template <typename F> __device__ __forceinline__ Cut reach(double goal, bool strictly, F&& value) {
    uint32_t key = 0;
    double above = 0.;  // sum over the keys above the last candidate that fell short, which is `key` + 1 in the end
    for (int bit = 31; bit >= 0; --bit) {
      const uint32_t candidate = key | 1u << bit;
      const double reached = sum([&](uint32_t k) { return k >= candidate ? static_cast<double>(value(k)) : 0.; });
      if (strictly ? reached > goal : reached >= goal) key = candidate;
      else above = reached;
    }
    const double each = value(key);
    if (key == 0 || each <= 0.) return Cut{key, kAll};
    const double missing = (goal - above) / each;
    return Cut{key, fmax(1., strictly ? floor(missing) + 1. : ceil(missing))};
  }

  // Calls `visit(id, key, rank among those equal to `key`)` in the order of ids, a block's width at a time; stops where `visit` says so.
  template <typename F> __device__ __forceinline__ void ranked(uint32_t key, F&& visit) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int before = 0;
    for (int base = 0; base < size; base += kThreads) {
      const int id = base + threadIdx.x;
      const uint32_t mine = id < size ? sortable(logits[id]) : 0u;
      const bool is_tie = id < size && mine == key;
      const uint32_t ties = __ballot_sync(~0u, is_tie);
      if (lane == 0) shared.count[warp] = __popc(ties);
      __syncthreads();
      int rank = before + __popc(ties & ((1u << lane) - 1));
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) rank += shared.count[w];
        before += shared.count[w];
      }
      if (id < size) visit(id, mine, is_tie, rank);
      __syncthreads();
    }
  }
};

}  // namespace

struct SampleArguments {
  const float* logits;
  const float* temperature;
  const int* top_k;
  const float *top_p, *min_p, *uniform;
  int64_t* token;  // one of these two
  float* probs;
  int64_t row;
  int size;
};

namespace {

// Lowest id of the largest logit.
__device__ __forceinline__ int arg_max(const float* logits, int size, Shared& shared) {
  uint64_t best = 0;
  for (int i = threadIdx.x; i < size; i += kThreads) {
    const uint64_t mine = static_cast<uint64_t>(sortable(logits[i])) << 32 | (0xffffffffu - static_cast<uint32_t>(i));
    best = mine > best ? mine : best;
  }
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    const uint64_t other = __shfl_xor_sync(~0u, best, lane);
    best = other > best ? other : best;
  }
  if (threadIdx.x % 32 == 0) shared.best[threadIdx.x / 32] = best;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) best = shared.best[w] > best ? shared.best[w] : best;
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(best));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1) sample_rows(const __grid_constant__ SampleArguments a) {
  __shared__ Shared shared;
  const int n = blockIdx.x;
  const float* logits = a.logits + n * a.row;
  const int best = arg_max(logits, a.size, shared);
  const float temperature = a.temperature[n];
  const int top_k = a.top_k[n];
  float* probs = a.probs + static_cast<int64_t>(n) * a.size;
  if (temperature == 0.f || top_k == 1) {
    if (a.token != nullptr) {
      if (threadIdx.x == 0) a.token[n] = best;
    } else {
      for (int i = threadIdx.x; i < a.size; i += kThreads) probs[i] = i == best ? 1.f : 0.f;
    }
    return;
  }
  Row row{logits, a.size, logits[best], 1.4426950408889634f / temperature, shared, 0};
  auto weight = [&](uint32_t key) { return row.weight(key); };
  Cut cut{0u, kAll};
  if (top_k > 0 && top_k < a.size) cut = row.reach(top_k, false, [](uint32_t) { return 1.f; });
  auto mass = [&](const Cut& c, float least) {  // of what a cut keeps and is no lighter than `least`
    const double above = row.sum([&](uint32_t k) { const float w = k > c.key ? weight(k) : 0.f; return w >= least ? static_cast<double>(w) : 0.; });
    const double ties = row.sum([&](uint32_t k) { return k == c.key ? 1. : 0.; }), each = weight(c.key);
    return above + (each >= least && ties > 0. ? fmin(ties, c.ties) * each : 0.);
  };
  if (a.top_p[n] < 1.f) {
    const Cut nucleus = row.reach(static_cast<double>(a.top_p[n]) * mass(cut, 0.f), false, weight);
    if (nucleus.key > cut.key || (nucleus.key == cut.key && nucleus.ties < cut.ties)) cut = nucleus;
  }
  const float least = a.min_p[n];
  const double total = mass(cut, least);
  if (a.token == nullptr) {
    const float inverse = static_cast<float>(1. / total);
    row.ranked(cut.key, [&](int id, uint32_t key, bool is_tie, int rank) {
      const float w = weight(key);
      probs[id] = (is_tie ? rank < cut.ties : key > cut.key) && w >= least ? w * inverse : 0.f;
    });
    return;
  }
  if (threadIdx.x == 0) a.token[n] = best;  // stays where rounding lets no sum exceed the draw
  const Cut drawn = row.reach(static_cast<double>(a.uniform[n]) * total, true, weight);
  const double place = fmin(drawn.ties, drawn.key == cut.key ? cut.ties : kAll);
  row.ranked(drawn.key, [&](int id, uint32_t, bool is_tie, int rank) {
    if (is_tie && rank + 1 == place) a.token[n] = id;
  });
}

// Philox-4x32-10: the first word, as a number in [0, 1), of each key (seed) and counter (position, stream).
extern "C" __global__ void __launch_bounds__(128) sample_uniforms(const int64_t* seed, const int64_t* position, float* uniform, int stream, int rows) {
  const int n = blockIdx.x * 128 + threadIdx.x;
  if (n >= rows) return;
  uint32_t c0 = static_cast<uint32_t>(position[n]), c1 = static_cast<uint32_t>(position[n] >> 32), c2 = stream, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed[n]), k1 = static_cast<uint32_t>(seed[n] >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t x = static_cast<uint64_t>(c0) * 0xD2511F53u, y = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
    c0 = static_cast<uint32_t>(y >> 32) ^ c1 ^ k0, c1 = static_cast<uint32_t>(y);
    c2 = static_cast<uint32_t>(x >> 32) ^ c3 ^ k1, c3 = static_cast<uint32_t>(x);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  uniform[n] = static_cast<float>(c0 >> 8) * 0x1p-24f;
}
