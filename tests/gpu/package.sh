#!/usr/bin/env bash
# Builds what tests/gpu/run.sh runs and packs it for a machine that has a GPU but neither compilers nor packages. Needs
# nvcc and no GPU.
set -euo pipefail

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  cat <<'USAGE'
Usage: tests/gpu/package.sh [FOLDER]

Writes kernels_cuda_test, gpu_bench, the shared libraries that they need beyond the C library, and run.sh to FOLDER
(build/gpu-package). There, `./run.sh --binaries .` needs a C library as new as this machine's, the driver, and cuBLASLt of
the CUDA version that it was built with.
USAGE
  exit 0
fi
cd "$(dirname "$0")/../.."
folder=${1:-build/gpu-package}

cmake --preset cuda -B build/cuda-package -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN/lib' \
  -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags
cmake --build build/cuda-package --target kernels_cuda_test gpu_bench

rm -rf "$folder"
mkdir -p "$folder/lib"
strip -o "$folder/kernels_cuda_test" build/cuda-package/bin/kernels_cuda_test
strip -o "$folder/gpu_bench" build/cuda-package/bin/gpu_bench
cp tests/gpu/run.sh "$folder/"
# What belongs to the C library stays the target machine's.
for binary in "$folder/kernels_cuda_test" "$folder/gpu_bench"; do
  ldd "$binary" | awk '$3 ~ /^\// { print $3 }'
done | sort -u | grep -v -E '/(libc|libm|libdl|libpthread|librt|libresolv)\.so\.[0-9]+$' | xargs -r cp -L -t "$folder/lib"
if ldd "$folder/kernels_cuda_test" "$folder/gpu_bench" | grep 'not found'; then
  echo "package.sh: a library is missing" >&2
  exit 1
fi
du -sh "$folder"
