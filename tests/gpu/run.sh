#!/usr/bin/env bash
# On a machine with an NVIDIA GPU (compute capability 8.0 or newer): the conformance suite on the GPU itself, then under
# compute-sanitizer's memcheck, racecheck and synccheck where that tool is installed, then the benchmarks.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: tests/gpu/run.sh [--binaries DIR] [--out FILE] [--models NAME,...|none] [--device N]

  --binaries DIR   kernels_cuda_test and gpu_bench built before, as tests/gpu/package.sh packs them; without it they are
                   built here in build/cuda, which needs nvcc, the packages of deploy/install_dependencies.sh, and no gRPC
  --out FILE       where the benchmarks' JSON goes (gpu_bench.json)
  --models LIST    whose shapes whole prefills are measured in: Mistral-7B, Llama-3.1-8B, Llama-2-13B (all three), or none
  --device N       which of the visible GPUs (0)

cuBLASLt is loaded when a program starts; LD_LIBRARY_PATH may name its folder.
USAGE
}

binaries=
out=gpu_bench.json
device=0
bench_arguments=()
while (($# > 0)); do
  case "$1" in
    --binaries) binaries=$(realpath "${2:?--binaries needs a folder}") ;;
    --out) out=${2:?--out needs a file} ;;
    --models) bench_arguments+=("--models=${2:?--models needs a list}") ;;
    --device) device=${2:?--device needs a number} ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "run.sh: unknown argument '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift 2
done
out=$(realpath -m "$out")

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi --list-gpus | grep -q GPU; then
  echo "run.sh: there is no NVIDIA GPU here (nvidia-smi finds none)" >&2
  exit 2
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

if [ -z "$binaries" ]; then
  cd "$(dirname "$0")/../.."
  cmake -S . -B build/cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVBLEND_CUDA=ON -DKVBLEND_BUILD_SERVER=OFF \
    -DKVBLEND_BUILD_BENCHMARKS=OFF
  cmake --build build/cuda --target kernels_cuda_test gpu_bench
  binaries=$PWD/build/cuda/bin
fi

export KVBLEND_TEST_CUDA_DEVICE=$device
"$binaries/kernels_cuda_test"
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck synccheck; do
    echo "--- $tool"
    # The cases with many blocks take minutes under a sanitizer and add no code to what the others run.
    compute-sanitizer --tool "$tool" --error-exitcode 3 "$binaries/kernels_cuda_test" \
      --gtest_filter='-*PermutingSequences*:*ConcurrencyTest*:*Linear/*'
  done
else
  echo "compute-sanitizer is not installed: NOT run under memcheck, racecheck and synccheck"
fi

echo "--- gpu_bench"
"$binaries/gpu_bench" "--device=$device" "--out=$out" "${bench_arguments[@]}"
echo "$out"
