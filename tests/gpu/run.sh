#!/usr/bin/env bash
# On a machine with an NVIDIA GPU (compute capability 8.0 or newer): the conformance suite on the GPU itself, under
# compute-sanitizer's memcheck, racecheck and synccheck where that tool is installed, and the benchmarks. What fails keeps
# nothing else from being run; the last lines say what came of each.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: tests/gpu/run.sh [--binaries DIR] [--out FILE] [--stages LIST] [--filter PATTERN] [--limit SECONDS]
                        [--models NAME,...|none] [--device N]

  --binaries DIR   kernels_cuda_test and gpu_bench built before, as tests/gpu/package.sh packs them; without it they are
                   built here in build/cuda, which needs nvcc and the packages of deploy/install_dependencies.sh --test
  --out FILE       where the benchmarks' JSON goes (gpu_bench.json); the logs of the other stages go beside it
  --stages LIST    of conformance,bench,memcheck,racecheck,synccheck, which are all and this order
  --filter PATTERN of tests, as --gtest_filter: what the sanitizers run (without it all but many blocks and repeated steps)
  --limit SECONDS  after which a stage is ended and counts as failed (3600)
  --models LIST    whose shapes whole prefills are measured in: Mistral-7B, Llama-3.1-8B, Llama-2-13B (all three), or none
  --device N       which of the visible GPUs (0)

cuBLASLt is loaded when a program starts; LD_LIBRARY_PATH may name its folder.
USAGE
}

binaries=
out=gpu_bench.json
device=0
stages=conformance,bench,memcheck,racecheck,synccheck
# The cases with many blocks take minutes under a sanitizer and add no code to what the others run; graphs' steps are no end of
# minutes under racecheck, and are made of kernels that others run.
filter='-*PermutingSequences*:*ConcurrencyTest*:*Linear/*:*RepeatedStep*'
limit=3600
bench_arguments=()
while (($# > 0)); do
  case "$1" in
    --binaries) binaries=$(realpath "${2:?--binaries needs a folder}") ;;
    --out) out=${2:?--out needs a file} ;;
    --stages) stages=${2:?--stages needs a list} ;;
    --filter) filter=${2:?--filter needs a pattern} ;;
    --limit) limit=${2:?--limit needs seconds} ;;
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
IFS=, read -ra stages <<<"$stages"
for stage in "${stages[@]}"; do
  case "$stage" in
    conformance | bench | memcheck | racecheck | synccheck) ;;
    *)
      echo "run.sh: there is no stage '$stage'; allowed: conformance, bench, memcheck, racecheck, synccheck" >&2
      exit 2
      ;;
  esac
done

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi --list-gpus | grep -q GPU; then
  echo "run.sh: there is no NVIDIA GPU here (nvidia-smi finds none)" >&2
  exit 2
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

if [ -z "$binaries" ]; then
  cd "$(dirname "$0")/../.."
  cmake --preset cuda
  cmake --build --preset cuda --target kernels_cuda_test gpu_bench
  binaries=$PWD/build/cuda/bin
fi

export KVBLEND_TEST_CUDA_DEVICE=$device
results=()
failed=0
# run STAGE COMMAND...: its output goes to STAGE.log beside the report, its last lines here.
run() {
  local stage=$1 log begin=$SECONDS rc=0
  shift
  log=$(dirname "$out")/$stage.log
  echo "--- $stage"
  timeout "$limit" "$@" >"$log" 2>&1 || rc=$?
  tail -n 15 "$log"
  ((rc == 0)) || failed=1
  results+=("$stage: exit $rc after $((SECONDS - begin)) s")
}
for stage in "${stages[@]}"; do
  case "$stage" in
    conformance) run "$stage" "$binaries/kernels_cuda_test" ;;
    bench) run "$stage" "$binaries/gpu_bench" "--device=$device" "--out=$out" "${bench_arguments[@]}" ;;
    *)
      if ! command -v compute-sanitizer >/dev/null; then
        results+=("$stage: NOT run, compute-sanitizer is not installed")
        continue
      fi
      run "$stage" compute-sanitizer --tool "$stage" --report-api-errors no --error-exitcode 3 "$binaries/kernels_cuda_test" \
        "--gtest_filter=$filter"
      ;;
  esac
done
echo "---"
printf '%s\n' "${results[@]}"
exit $failed
