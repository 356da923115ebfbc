// The definition of Backend::EncodeKv.
#pragma once

#include "kernels/kv_section.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// REQUIRES: what Backend::EncodeKv checks.
void EncodeSection(ConstMatrixView in, MutableKvSectionView out);

}  // namespace kvblend::kernels
