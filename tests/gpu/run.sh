#!/usr/bin/env bash
# On a machine with an NVIDIA GPU (compute capability 8.0 or newer): the conformance suite on the GPU itself,
# then under compute-sanitizer's memcheck, racecheck and synccheck where that tool is installed.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: tests/gpu/run.sh [TEST_BINARY]

TEST_BINARY is a kernels_cuda_test built before; without it, it is built here in build/cuda, which needs nvcc,
cuBLASLt and the packages of deploy/install_dependencies.sh, but no gRPC.
USAGE
}

case "${1:-}" in
  -h | --help)
    usage
    exit 0
    ;;
esac

binary=${1:-}
if [ -n "$binary" ]; then
  binary=$(realpath "$binary")
fi
cd "$(dirname "$0")/../.."

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi --list-gpus | grep -q GPU; then
  echo "run.sh: there is no NVIDIA GPU here (nvidia-smi finds none)" >&2
  exit 2
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

if [ -z "$binary" ]; then
  cmake -S . -B build/cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVBLEND_CUDA=ON -DKVBLEND_BUILD_SERVER=OFF \
    -DKVBLEND_BUILD_BENCHMARKS=OFF
  cmake --build build/cuda --target kernels_cuda_test
  binary=$PWD/build/cuda/bin/kernels_cuda_test
fi

"$binary"
if ! command -v compute-sanitizer >/dev/null; then
  echo "compute-sanitizer is not installed: NOT run under memcheck, racecheck and synccheck"
  exit 0
fi
for tool in memcheck racecheck synccheck; do
  echo "--- $tool"
  # The cases with many blocks take minutes under a sanitizer and add no code to what the others run.
  compute-sanitizer --tool "$tool" --error-exitcode 3 "$binary" \
    --gtest_filter='-*PermutingSequences*:*ConcurrencyTest*:*Linear/*'
done
