#!/usr/bin/env bash
# Compiles every CUDA kernel with nvcc for sm_80 and sm_90 (and, for what comes later, to PTX), and the host code that
# is for GPUs alone, all warnings being errors, and holds what ptxas says of registers, spills and stack to
# tests/gpu/kernel_budget.txt and the machine code of the hot kernels to tests/gpu/sass_budget.txt. Needs no GPU. Exits
# with 77, which stands for "skipped", where there is no nvcc; its last line is the reason.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  echo "Usage: tests/gpu/check_kernels.sh [--update]   (--update writes the budgets anew, for a look at the diff)"
  exit 0
fi

# find_tool NAME: in the PATH or where CUDA installs itself; nothing where there is none.
find_tool() { PATH=$PATH:/usr/local/cuda/bin command -v "$1" || true; }
nvcc=${NVCC:-$(find_tool nvcc)}
if [ -z "$nvcc" ]; then
  echo "no nvcc: the CUDA kernels are not compiled for GPUs; kernels_cuda_emulated_test runs their sources"
  exit 77
fi
"$nvcc" --version | tail -n 2

out=build/nvcc
rm -rf "$out"  # an earlier run may have left what no source stands for any more
mkdir -p "$out"
compile() {
  local source=$1 name
  name=$(basename "$source" .cu)
  for architecture in 80 90; do
    local code=sm_$architecture
    # The newest one also as PTX, which drivers compile for newer GPUs.
    ((architecture != 90)) || code="[sm_90,compute_90]"
    "$nvcc" -std=c++20 -O3 -I. --expt-relaxed-constexpr -Werror all-warnings \
      -Xcompiler -Wall,-Wextra,-Werror -Xptxas -v,-warn-spills,-warn-lmem-usage \
      -gencode "arch=compute_$architecture,code=$code" \
      -c "$source" -o "$out/$name.$architecture.o" >"$out/$name.$architecture.log" 2>&1 || {
      echo "nvcc failed on $source for sm_$architecture:" >&2
      cat "$out/$name.$architecture.log" >&2
      return 1
    }
  done
}
export -f compile
export nvcc out
printf '%s\n' kernels/cuda/*/*.cu tests/bench/gpu/*.cu |
  xargs -P "$(nproc)" -I{} bash -euo pipefail -c 'compile {}'
# What of the backend's host code no build without CUDA compiles, with the optimisation of tests/gpu/run.sh's build.
for source in kernels/cuda/{runtime/runtime_cuda,linear/gemm_cublaslt,linear/cublaslt_library}.cc \
  tests/bench/gpu/stopwatch_cuda.cc tests/conformance/cuda/gpu_backends.cc; do
  "$nvcc" -std=c++20 -O3 -I. -Xcompiler -Wall,-Wextra,-Werror -c "$source" -o "$out/host.o"
  rm "$out/host.o"
done
python3 -B tests/gpu/kernel_budget.py "${1:-}" tests/gpu/kernel_budget.txt "$out"/*.log

# The disassembler comes with CUDA, and by itself as Python packages.
cuobjdump=${CUOBJDUMP:-$(find_tool cuobjdump)}
if [ -z "$cuobjdump" ]; then
  tools=build/nvcc-tools
  find_it() { find "$tools" -path '*/bin/cuobjdump' 2>/dev/null | head -n 1 || true; }
  cuobjdump=$(find_it)
  if [ -z "$cuobjdump" ] && python3 -m venv "$tools" &&
    "$tools/bin/python" -m pip install --quiet 'nvidia-cuda-cuobjdump==13.*' 'nvidia-cuda-nvdisasm==13.*'; then
    cuobjdump=$(find_it)
  fi
fi
if [ -z "$cuobjdump" ]; then
  echo "no cuobjdump, and none could be installed: the kernels compile within their budgets of registers, but nobody" \
    "looked at their machine code"
  exit 77
fi
export PATH=$(dirname "$cuobjdump"):$PATH  # it calls nvdisasm
listings=()
for object in "$out"/*.o; do
  architecture=${object%.o}
  architecture=sm_${architecture##*.}
  "$cuobjdump" -sass "$object" >"${object%.o}.sass"
  listings+=("$architecture=${object%.o}.sass")
done
python3 -B tests/gpu/sass_budget.py "${1:-}" tests/gpu/sass_budget.txt "${listings[@]}"
