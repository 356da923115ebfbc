#include "kernels/cpu/amx/tiles.h"

#if defined(__x86_64__)
#include "kernels/cpu/amx/products.h"

namespace kvblend::kernels {

Tiles WithAmxProducts(const Tiles& vectors) { return MakeAmxTiles<AmxInstructions>(vectors); }

}  // namespace kvblend::kernels
#endif  // x86-64
