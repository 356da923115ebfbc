// The kernels of each instruction set (code_products.h). To be called where the processor has it.
#pragma once

#include "kernels/cpu/linear/code_products.h"

namespace kvblend::kernels {

const CodeKernels& CodeKernelsAvx2();
const CodeKernels& CodeKernelsAvxVnni();
const CodeKernels& CodeKernelsAvx512Vnni();

}  // namespace kvblend::kernels
