#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/machine/instruction_set.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {

const Tiles& BestTiles(DataType wanted) {
  const Tiles& vectors = simd::GetTiles(wanted);
#if defined(__x86_64__)
  if (vectors.dtype == DataType::kBF16 && AllowedInstructionSet() == InstructionSet::kAmx && RequestAmx()) {
    static const Tiles amx = WithAmxProducts(vectors);
    return amx;
  }
#endif
  return vectors;
}

}  // namespace kvblend::kernels
