#!/usr/bin/env bash
# Configures and builds one preset. quickstart.sh, tests/run.sh and the Dockerfile all build with this script.
set -euo pipefail

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  cat <<'USAGE'
Usage: deploy/build.sh [PRESET [TARGET...]]

  PRESET   release (the default), cuda, debug, asan or tsan; see CMakePresets.json
  TARGET   what to build; everything when none is given

The binaries land in build/PRESET/bin. KVBLEND_BUILD_JOBS sets the number of parallel compilers; by default
one per processor, and no more than memory allows.
USAGE
  exit 0
fi

cd "$(dirname "$0")/.."
preset=${1:-release}
shift $(($# > 0 ? 1 : 0))

# The largest translation units (generated gRPC code under a sanitizer) take about 1.2 GB each.
readonly KILOBYTES_PER_JOB=1300000
jobs=${KVBLEND_BUILD_JOBS:-}
if [ -z "$jobs" ]; then
  jobs=$(nproc)
  available=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  by_memory=$((available / KILOBYTES_PER_JOB))
  ((by_memory >= jobs)) || jobs=$((by_memory > 1 ? by_memory : 1))
fi

# Cached objects are found again from another checkout of the same sources.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}

cmake --preset "$preset"
arguments=(--build --preset "$preset" --parallel "$jobs")
(($# == 0)) || arguments+=(--target "$@")
cmake "${arguments[@]}"
