#!/usr/bin/env bash
# Puts a CUDA compiler and cuBLAS into /opt/cuda, from the Python packages that NVIDIA publishes: what KVBLEND_CUDA=ON needs.
set -euo pipefail

if [ $# -gt 0 ]; then
  echo "Usage: deploy/docker/install_cuda.sh"
  [ "$1" = -h ] || [ "$1" = --help ] || exit 2
  exit 0
fi
readonly PACKAGES=(
  nvidia-cublas==13.1.0.3
  nvidia-cuda-cccl==13.0.85
  nvidia-cuda-crt==13.0.88
  nvidia-cuda-nvcc==13.0.88
  nvidia-cuda-runtime==13.0.96
  nvidia-nvvm==13.0.88
)
python3 -m pip install --quiet --no-cache-dir --no-deps --target /opt/cuda-packages "${PACKAGES[@]}"
ln -sfn /opt/cuda-packages/nvidia/cu13 /opt/cuda
cd /opt/cuda
chmod +x bin/* nvvm/bin/*
# The layout of NVIDIA's own installer, which nvcc and CMake know.
ln -sfn lib lib64
mkdir -p targets
ln -sfn .. targets/x86_64-linux
for library in lib/*.so.*; do
  ln -sfn "$(basename "$library")" "${library%%.so.*}.so"
done
bin/nvcc --version | tail -n 2
