// RoPE of one head, element by element.
#pragma once

#include <cstdint>

#include "kernels/host/batch_plan.h"

namespace kvblend::kernels::reference {

/// Rotates a head in place to a position.
inline void RotateHead(const HostRopeTable& rope, int64_t position, float* head) {
  const int64_t half = rope.head_dim() / 2;
  for (int64_t i = 0; i < half; ++i) {
    const bool interleaved = rope.layout() == RopeLayout::kInterleaved;
    float& a = head[interleaved ? 2 * i : i];
    float& b = head[interleaved ? 2 * i + 1 : i + half];
    const float cos = rope.cos(position)[i], sin = rope.sin(position)[i];
    const float rotated_a = a * cos - b * sin;
    b = a * sin + b * cos;
    a = rotated_a;
  }
}

/// The inverse of RotateHead: cos and sin may have a magnitude.
inline void UnrotateHead(const HostRopeTable& rope, int64_t position, float* head) {
  const int64_t half = rope.head_dim() / 2;
  for (int64_t i = 0; i < half; ++i) {
    const bool interleaved = rope.layout() == RopeLayout::kInterleaved;
    float& a = head[interleaved ? 2 * i : i];
    float& b = head[interleaved ? 2 * i + 1 : i + half];
    const float cos = rope.cos(position)[i], sin = rope.sin(position)[i];
    const float squares = cos * cos + sin * sin, unrotated_a = (a * cos + b * sin) / squares;
    b = (b * cos - a * sin) / squares;
    a = unrotated_a;
  }
}

}  // namespace kvblend::kernels::reference
