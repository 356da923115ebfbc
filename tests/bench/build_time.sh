#!/usr/bin/env bash
# How long a newcomer's first build takes: clean builds of what quickstart.sh builds, without a compiler cache.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: tests/bench/build_time.sh [--runs N] [--jobs N] [--all]

  --runs N   so many clean builds (default 3)
  --jobs N   parallel compilers (default: one per processor)
  --all      everything, with tests and benchmarks, instead of kvblend-server and kvblend

Prints wall-clock and processor seconds of each build and the median of the wall-clock times. Builds in a scratch folder.
USAGE
}

runs=3
jobs=$(nproc)
targets=(--target kvblend-server kvblend)
while (($# > 0)); do
  case "$1" in
    --runs | --jobs)
      [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || {
        echo "build_time.sh: $1 is '${2:-}'; allowed: a number from 1" >&2
        exit 2
      }
      [ "$1" = --runs ] && runs=$2 || jobs=$2
      shift
      ;;
    --all) targets=() ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "build_time.sh: unknown argument '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done

cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export CCACHE_DISABLE=1
TIMEFORMAT='%R %U %S'

echo "processor:$(sed -n 's/^model name[^:]*://p' /proc/cpuinfo | head -n 1), $(nproc) threads; $jobs jobs"
walls=()
for ((run = 1; run <= runs; run++)); do
  rm -rf "$scratch/build"
  cmake --preset release -B "$scratch/build" >"$scratch/log"
  { time cmake --build "$scratch/build" --parallel "$jobs" "${targets[@]}" >>"$scratch/log" 2>&1; } 2>"$scratch/time" || {
    tail -n 30 "$scratch/log"
    exit 1
  }
  read -r wall user system <"$scratch/time"
  walls+=("$wall")
  echo "run $run: $wall s wall clock, $user s user + $system s system"
done
echo "median: $(printf '%s\n' "${walls[@]}" | sort -n | sed -n "$(((runs + 1) / 2))p") s"
