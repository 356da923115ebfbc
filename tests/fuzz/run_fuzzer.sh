#!/usr/bin/env bash
# Runs one libFuzzer target for KVBLEND_FUZZ_SECONDS (60) on its committed corpus and what it found before.
#   run_fuzzer.sh BINARY CORPUS SEEDS [ARGUMENT...]
# CORPUS and SEEDS (a program that writes inputs into a folder) may be empty. New inputs are kept in
# fuzz-corpus/NAME below the folder that it is called in, and the input of a finding in fuzz-findings.
set -euo pipefail

if (($# < 3)); then
  sed -n '2,5s/^# //p' "$0" >&2
  exit 2
fi
binary=$1 corpus=$2 seeds=$3
shift 3
name=$(basename "$binary")
work=$PWD/fuzz-corpus/$name
mkdir -p "$work" "$PWD/fuzz-findings"
folders=("$work")
[ -z "$corpus" ] || folders+=("$corpus")
[ -z "$seeds" ] || "$seeds" "$work"
export ASAN_OPTIONS="detect_leaks=1:${ASAN_OPTIONS:-}" UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
# The end of what libFuzzer says is enough: the statistics, or the finding.
status=0
"$binary" "${folders[@]}" -max_total_time="${KVBLEND_FUZZ_SECONDS:-60}" -timeout=20 -rss_limit_mb=2048 \
  -print_final_stats=1 -artifact_prefix="$PWD/fuzz-findings/$name-" "$@" >"$work.log" 2>&1 || status=$?
tail -n 100 "$work.log"
exit "$status"
