#!/usr/bin/env bash
# Installs the Debian 12 packages that kvblend needs. The only list of packages there is: quickstart.sh,
# tests/run.sh and the Dockerfile all call this script.
#
# Does nothing (no network, no root) when every package is there already.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: deploy/install_dependencies.sh [--build] [--runtime] [--test] [--browser] [--clang] [--lint] [--print]

  --build    what compiling needs, and fetching the model (the default)
  --runtime  the shared libraries that the binaries need, nothing else
  --test     what tests/run.sh needs: --build, redis-server, and promtool, unpacked into build/tools
  --browser  Chromium, for the tests of the page at /ui
  --clang    Clang with sanitizers and libFuzzer, for tests/run.sh --sanitizers=asan and --fuzz
  --lint     clang-format and clang-tidy, for tests/lint.sh
  --print    print the packages, one per line, and install nothing
USAGE
}

readonly BUILD_PACKAGES=(
  ca-certificates
  ccache
  cmake
  g++
  libabsl-dev
  libbenchmark-dev
  libboost-context-dev
  libboost-dev
  libcli11-dev
  libcpp-httplib-dev
  libdnnl-dev
  libeigen3-dev
  libgmock-dev
  libgrpc++-dev
  libgtest-dev
  libhiredis-dev
  libhwy-dev
  libprotobuf-dev
  libspdlog-dev
  libssl-dev
  liburing-dev
  libutf8proc-dev
  libxxhash-dev
  ninja-build
  nlohmann-json3-dev
  pkg-config
  prometheus-cpp-dev
  protobuf-compiler
  protobuf-compiler-grpc
  python3
  python3-pip
  python3-venv
)

readonly RUNTIME_PACKAGES=(
  libabsl20220623
  libdnnl2
  libfmt9
  libgomp1
  libgrpc++1.51
  libgrpc29
  libhiredis0.14
  libhwy1
  libprometheus-cpp-core1.0
  libprotobuf32
  libspdlog1.10
  libssl3
  libstdc++6
  liburing2
  libutf8proc2
  libxxhash0
)

readonly TEST_PACKAGES=(
  buildah
  debootstrap
  openssl
  redis-server
)

readonly CLANG_PACKAGES=(
  clang
  libclang-rt-14-dev
  lld  # a quarter of the time for each of nearly eighty programs
)

readonly BROWSER_PACKAGES=(chromium)

readonly LINT_PACKAGES=(
  clang-format-14
  clang-tidy-14
)

cd "$(dirname "$0")/.."
packages=()
print_only=false
with_promtool=false
while (($# > 0)); do
  case "$1" in
    --build) packages+=("${BUILD_PACKAGES[@]}") ;;
    --runtime) packages+=("${RUNTIME_PACKAGES[@]}") ;;
    --test)
      packages+=("${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}")
      with_promtool=true
      ;;
    --browser) packages+=("${BROWSER_PACKAGES[@]}") ;;
    --clang) packages+=("${CLANG_PACKAGES[@]}") ;;
    --lint) packages+=("${LINT_PACKAGES[@]}") ;;
    --print) print_only=true ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "install_dependencies.sh: unknown argument '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done
((${#packages[@]} > 0)) || packages=("${BUILD_PACKAGES[@]}")

if $print_only; then
  printf '%s\n' "${packages[@]}" | sort -u
  exit 0
fi

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "install_dependencies.sh: needs a Debian 12 system (apt-get and dpkg-query); see the lists in $0" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  # Multi-arch packages report one state per architecture.
  [[ "$state" == *installed && "$state" != *not-installed ]] || missing+=("$package")
done

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo -- "$@"
  else
    echo "install_dependencies.sh: neither root nor sudo; ask an administrator to run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
}

readonly APT_OPTIONS=(-qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)

if ((${#missing[@]} > 0)); then
  echo "Installing ${#missing[@]} packages: ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get "${APT_OPTIONS[@]}" update
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get "${APT_OPTIONS[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null
else
  echo "All ${#packages[@]} packages are installed."
fi

# promtool comes only in the package of the Prometheus server, which would also start one as a service:
# the program alone is taken out of the package.
readonly TOOLS=build/tools
if $with_promtool && ! command -v promtool >/dev/null && [ ! -x "$TOOLS/promtool" ]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  chmod 755 "$scratch"
  [ -n "$(apt-cache policy prometheus 2>/dev/null)" ] || as_root apt-get "${APT_OPTIONS[@]}" update
  if ! (cd "$scratch" && apt-get "${APT_OPTIONS[@]}" download prometheus 2>/dev/null); then
    as_root apt-get "${APT_OPTIONS[@]}" update
    (cd "$scratch" && apt-get "${APT_OPTIONS[@]}" download prometheus)
  fi
  dpkg-deb --extract "$scratch"/prometheus_*.deb "$scratch/prometheus"
  mkdir -p "$TOOLS"
  install -m 755 "$scratch/prometheus/usr/bin/promtool" "$TOOLS/promtool"
  echo "promtool is in $TOOLS."
fi
