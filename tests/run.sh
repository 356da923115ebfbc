#!/usr/bin/env bash
# Runs every test of the project: installs packages, builds, fetches the model, then ctest and pytest.
# All suites run before the script fails. The last line reads 'N passed, N failed, N skipped'; before it, every
# skipped test stands with its reason.
set -uo pipefail

usage() {
  cat <<'USAGE'
Usage: tests/run.sh [--all] [--sanitizers[=asan,tsan]] [--fuzz[=SECONDS]] [--lint] [--deployment] [--no-install]

  --all          everything below, the page at /ui in a browser, and 10,000 mutated requests to a server with
                 AddressSanitizer: what to run once a night, or before a release
  --sanitizers   also build with AddressSanitizer + UndefinedBehaviorSanitizer (asan, with Clang) and with
                 ThreadSanitizer (tsan), both or the named ones, and run ctest in each
  --fuzz         also run the fuzzers (of the asan build), each for so many seconds; 60 without a number
  --lint         also check the formatting (seconds); with --lint=tidy run clang-tidy too (the better part of an hour)
  --deployment   also build the Debian package, the wheel and the container image, and start what is in them on a bare
                 system; test the Python package with LangChain, LlamaIndex and Haystack; check the manifests
  --no-install   take the packages as they are

Results lie in build/PRESET/results. KVBLEND_MODEL names another model file than the default one;
KVBLEND_BUILD_JOBS and KVBLEND_TEST_JOBS limit parallel work.
USAGE
}

cd "$(dirname "$0")/.." || exit 1
root=$PWD
sanitizers=()
fuzz_seconds=
lint=
deployment=false
browser=false
mutations=  # how many requests; none: as many as pytest sends anyway
install=true
for argument in "$@"; do
  case "$argument" in
    --all)
      sanitizers=(asan tsan)
      fuzz_seconds=${fuzz_seconds:-60}
      lint=tidy
      deployment=true
      browser=true
      mutations=10000
      ;;
    --sanitizers) sanitizers=(asan tsan) ;;
    --sanitizers=*)
      IFS=, read -ra sanitizers <<<"${argument#*=}"
      for sanitizer in "${sanitizers[@]}"; do
        if [ "$sanitizer" != asan ] && [ "$sanitizer" != tsan ]; then
          echo "run.sh: unknown sanitizer '$sanitizer'; allowed: asan, tsan" >&2
          exit 2
        fi
      done
      ;;
    --fuzz) fuzz_seconds=60 ;;
    --fuzz=*)
      fuzz_seconds=${argument#*=}
      if ! [[ "$fuzz_seconds" =~ ^[1-9][0-9]*$ ]]; then
        echo "run.sh: --fuzz is '$fuzz_seconds'; allowed: a number of seconds" >&2
        exit 2
      fi
      ;;
    --lint) lint=${lint:-format} ;;
    --lint=tidy) lint=tidy ;;
    --deployment) deployment=true ;;
    --no-install) install=false ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "run.sh: unknown argument '$argument'" >&2
      usage >&2
      exit 2
      ;;
  esac
done

# Without this, an interrupted compiler would count as one failed stage and the next one would start.
trap 'exit 130' INT
trap 'exit 143' TERM

integrations=
! $deployment || integrations=--integrations
stage_lines=()
failed_stages=()
summary_arguments=()  # what became of stages that run no tests themselves
skip_reason=          # of the stage that runs: set by may_skip

# stage NAME COMMAND...: runs the command, keeps its time and whether it failed.
stage() {
  local name=$1 start=$SECONDS status=0 outcome=ok
  shift
  printf '\n=== %s\n' "$name"
  skip_reason=
  "$@" || status=$?
  if ((status != 0)); then
    outcome=FAILED
    failed_stages+=("$name")
  elif [ -n "$skip_reason" ]; then
    outcome=skipped
    summary_arguments+=(--skipped "$name=$skip_reason")
  fi
  stage_lines+=("$(printf '%6d s  %-7s  %s' $((SECONDS - start)) "$outcome" "$name")")
  return "$status"
}

# prepare NAME COMMAND...: a stage without tests of its own; it counts as one failure when it fails.
prepare() {
  stage "$@" || {
    summary_arguments+=(--failed "$1")
    return 1
  }
}

# may_skip COMMAND...: a command that exits with 77 where it cannot do its work, the reason on its last line.
may_skip() {
  local log=build/stage.log status=0
  mkdir -p build
  "$@" 2>&1 | tee "$log" || status=$?
  ((status == 77)) || return "$status"
  skip_reason=$(tail -n 1 "$log")
}

fetch_model() {
  if [ -n "${KVBLEND_MODEL:-}" ]; then
    [ -f "$KVBLEND_MODEL" ] || {
      echo "KVBLEND_MODEL names '$KVBLEND_MODEL', which is no file" >&2
      return 1
    }
  else
    KVBLEND_MODEL=$(./deploy/fetch_model.sh | tail -n 1) || return 1
  fi
  KVBLEND_MODEL=$(realpath "$KVBLEND_MODEL") || return 1
  export KVBLEND_MODEL
  echo "$KVBLEND_MODEL"
}

# The virtual environment is kept until the requirements or the interpreter change.
readonly VENV=build/venv
make_venv() {
  local stamp
  stamp=$({
    python3 --version
    command -v python3
    cat tests/e2e/requirements.txt
  } | sha256sum | cut -d ' ' -f 1) || return 1
  if [ "$(cat "$VENV/stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$VENV"
    python3 -m venv "$VENV" || return 1
    "$VENV/bin/python" -m pip install --quiet --requirement tests/e2e/requirements.txt || return 1
    echo "$stamp" >"$VENV/stamp"
  fi
  "$VENV/bin/python" --version
}

test_jobs=${KVBLEND_TEST_JOBS:-$(nproc)}
suites=()  # PRESET/results folders, for the summary

# run_ctest PRESET [PREFIX COMMAND...]
run_ctest() {
  local preset=$1 results=$root/build/$1/results
  shift
  rm -rf "$results"
  mkdir -p "$results"
  suites+=("$results")
  "$@" ctest --preset "$preset" --parallel "$test_jobs" --no-tests=error --output-junit "$results/ctest.xml"
}

run_asan() {
  ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}" \
    UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}" \
    run_ctest asan
}

run_tsan() {
  # The ThreadSanitizer of GCC 12 cannot place its shadow memory where newer kernels randomise widely.
  local prefix=()
  ! setarch "$(uname -m)" --addr-no-randomize true 2>/dev/null ||
    prefix=(setarch "$(uname -m)" --addr-no-randomize)
  TSAN_OPTIONS="suppressions=$root/tests/tsan.supp:second_deadlock_stack=1:${TSAN_OPTIONS:-}" \
    run_ctest tsan "${prefix[@]}"
}

run_pytest() {
  local results=$root/build/release/results
  mkdir -p "$results"
  echo "pytest did not finish" >"$results/pytest.xml"
  PATH=$root/build/tools:$PATH KVBLEND_BIN_DIR=$root/build/release/bin PYTHONDONTWRITEBYTECODE=1 \
    "$VENV/bin/python" -m pytest -p no:cacheprovider -ra -n "$test_jobs" --dist loadfile \
    --junitxml="$results/pytest.xml" tests/deploy tests/e2e
}

# run_python_package [--integrations]
run_python_package() {
  local results=$root/build/release/results
  mkdir -p "$results"
  echo "pytest did not finish" >"$results/pytest_package.xml"
  KVBLEND_BIN_DIR=$root/build/release/bin ./tests/python/run.sh "$@" --junitxml="$results/pytest_package.xml"
}

# As the head of test_mutations.py has it.
run_mutations() {
  local results=$root/build/asan/results
  mkdir -p "$results"
  echo "pytest did not finish" >"$results/pytest_mutations.xml"
  KVBLEND_TEST_MUTATIONS=$mutations KVBLEND_BIN_DIR=$root/build/asan/bin PYTHONDONTWRITEBYTECODE=1 \
    ASAN_OPTIONS="quarantine_size_mb=16:${ASAN_OPTIONS:-}" \
    "$VENV/bin/python" -m pytest -p no:cacheprovider -s --junitxml="$results/pytest_mutations.xml" tests/e2e/mutations
}

run_fuzzers() {
  rm -rf build/asan/fuzz-findings
  KVBLEND_FUZZ_SECONDS=$fuzz_seconds run_ctest fuzz
}

clang=${fuzz_seconds:+--clang}  # for the fuzzers and the asan preset, which they are built in
[[ " ${sanitizers[*]-} " != *" asan "* ]] || clang=--clang
! $install || prepare "install packages" ./deploy/install_dependencies.sh --test $clang $($browser && echo --browser)
[ -z "$lint" ] || prepare "lint" ./tests/lint.sh
prepare "nvcc: CUDA kernels for sm_80 and sm_90" may_skip ./tests/gpu/check_kernels.sh
prepare "fetch the model" fetch_model
if prepare "build release" ./deploy/build.sh release; then
  stage "ctest release" run_ctest release
  if prepare "python environment" make_venv; then
    stage "pytest: deployment and end to end" run_pytest
  fi
  stage "pytest: Python package" run_python_package ${integrations:+"$integrations"}
  [ "$lint" != tidy ] || prepare "clang-tidy" ./tests/lint.sh --tidy
fi
if $deployment; then
  prepare "Debian package" may_skip ./tests/deploy/check_deb.sh
  prepare "Python wheel on a bare Debian" may_skip ./tests/deploy/check_wheel.sh
  prepare "container image" may_skip ./tests/deploy/check_image.sh
  prepare "compose stack" may_skip ./tests/deploy/check_compose.sh
  prepare "Kubernetes manifests" may_skip ./tests/deploy/check_kubernetes.sh
fi
for sanitizer in ${sanitizers[@]+"${sanitizers[@]}"}; do
  if prepare "build $sanitizer" ./deploy/build.sh "$sanitizer"; then
    stage "ctest $sanitizer" "run_$sanitizer"
    if [ "$sanitizer" = asan ] && [ -n "$mutations" ]; then
      stage "pytest: $mutations mutated requests, with asan" run_mutations
    fi
  fi
done
if [ -n "$fuzz_seconds" ] && prepare "build the fuzzers" ./deploy/build.sh asan fuzzers; then
  stage "fuzz for $fuzz_seconds s each" run_fuzzers
fi

printf '\n=== summary\n'
printf '%s\n' "${stage_lines[@]}"
python3 -B tests/summary.py ${summary_arguments[@]+"${summary_arguments[@]}"} ${suites[@]+"${suites[@]}"}
summary_status=$?
((summary_status == 0 && ${#failed_stages[@]} == 0))
