// The rotations that a model file asks for: base frequency, and one of the published ways to stretch them
// over longer contexts.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf/gguf_file.h"

namespace kvblend::model {

/// One way to rotate; layers may have different ones.
struct RopeConfig {
  std::vector<float>
      inv_freq;  // [head_dim / 2], radians per position, scaling applied; 0: that pair stays as it is
  /// LongRoPE: in place of the others once a context is longer than original_context_length. Empty: there are
  /// none.
  std::vector<float> long_inv_freq;
  int32_t original_context_length = 0;
  float magnitude = 1;  // of the rotated vectors

  bool UsesLong(int32_t context_length) const {
    return !long_inv_freq.empty() && context_length > original_context_length;
  }
};

struct RopeShape {
  int32_t head_dim = 0;
  int32_t rotated_dims = 0;  // even, at most head_dim: the rest of a head is not rotated
  int32_t context_length = 0;
  float freq_base = 0;
};

/// Scaling by the keys "<architecture>.rope.scaling.*" and the tensors rope_freqs and rope_factors_*:
///   linear    position interpolation (Chen et al., 2023)
///   llama3    divisors by frequency, in the tensor rope_freqs.weight
///   yarn      "NTK by parts" and attention temperature (Peng et al., YaRN, 2023, sections 3.2 and 3.4)
///   longrope  searched divisors by frequency, for short and for long contexts (Ding et al., LongRoPE, 2024)
/// kUnimplemented for any other, kInvalidArgument for contradictions.
absl::StatusOr<RopeConfig> ReadRopeConfig(const GgufFile& file, const Architecture& architecture,
                                          const RopeShape& shape);
/// No scaling.
RopeConfig PlainRope(const RopeShape& shape);
/// Rotates by nothing, as layers without RoPE do.
RopeConfig NoRope(const RopeShape& shape);

/// What each element of a head becomes, where only some dims of split halves are rotated: backends rotate
/// element i of the one half of a head with element i of the other, so the rows of Q and K are taken in the
/// order out[i] = in[order[i]]. Empty: as they are.
std::vector<int32_t> RotationOrder(kernels::RopeLayout layout, const RopeShape& shape);

}  // namespace kvblend::model
