// RoPE of one head, element by element.
#pragma once

#include <cstdint>

#include "kernels/host/batch_plan.h"

namespace kvblend::kernels::reference {

/// Calls turn(a, b, cos, sin) for each pair of a head's elements, with the angle that it has at `position`.
template <typename Turn>
void ForPairs(const HostRopeTable& rope, int64_t position, float* head, const Turn& turn) {
  const bool interleaved = rope.layout() == RopeLayout::kInterleaved;
  const int64_t half = rope.head_dim() / 2;
  for (int64_t i = 0; i < half; ++i) {
    turn(head[interleaved ? 2 * i : i], head[interleaved ? 2 * i + 1 : i + half], rope.cos(position)[i],
         rope.sin(position)[i]);
  }
}

/// Rotates a head in place to a position.
inline void RotateHead(const HostRopeTable& rope, int64_t position, float* head) {
  ForPairs(rope, position, head, [](float& a, float& b, float cos, float sin) {
    const float rotated_a = a * cos - b * sin;
    b = a * sin + b * cos;
    a = rotated_a;
  });
}

/// The inverse of RotateHead: cos and sin may have a magnitude.
inline void UnrotateHead(const HostRopeTable& rope, int64_t position, float* head) {
  ForPairs(rope, position, head, [](float& a, float& b, float cos, float sin) {
    const float squares = cos * cos + sin * sin, unrotated_a = (a * cos + b * sin) / squares;
    b = (b * cos - a * sin) / squares;
    a = unrotated_a;
  });
}

}  // namespace kvblend::kernels::reference
