// What `tensor_map.cuh` offers: a map is an address, rows, bytes a row, and rows of a box (128 bytes wide).
#pragma once
#include "hopper_on_cpu.h"

inline void tensor_load(uint32_t to, const TensorMap* map, int x, int y, uint32_t barrier) {
  const uint8_t* from = reinterpret_cast<const uint8_t*>(map->words[0]);
  const int64_t rows = map->words[1], width = map->words[2];
  const int box = static_cast<int>(map->words[3]);
  if (to % 1024 || x % 16 || x < 0 || y < 0) std::fprintf(stderr, "a tensor copy is not aligned\n"), std::abort();
  emulated::Barrier& b = emulated::barrier_at(barrier);
  b.copies.push_back([=, &b] {
    for (int r = 0; r < box; ++r)
      for (int i = 0; i < 128; ++i) {
        const bool inside = y + r < rows && x + i < width;
        shared_pointer(to)[r * 128 + (i ^ (r % 8 * 16))] = inside ? from[(y + r) * width + x + i] : 0;
      }
    b.bytes -= box * 128;
  });
}
