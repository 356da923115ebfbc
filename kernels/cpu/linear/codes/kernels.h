// The kernels of each instruction set (code_products.h). To be called where the processor has it.
#pragma once

#include "kernels/cpu/linear/code_products.h"

namespace kvblend::kernels {

// quantize_rows.cc; REQUIRES: AVX2
void QuantizeTerms(const void* x, DataType dtype, int64_t n, const RowTerms& out);
void QuantizeAsymmetric(const void* x, DataType dtype, int64_t n, const AsymmetricRows& out);
void QuantizeWholeGroups(const void* x, DataType dtype, int64_t n, const WholeGroupRows& out);

const CodeKernels& CodeKernelsAvx2();
const CodeKernels& CodeKernelsAvxVnni();
const CodeKernels& CodeKernelsAvx512Vnni();

}  // namespace kvblend::kernels
