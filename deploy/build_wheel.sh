#!/usr/bin/env bash
# Builds the wheel of the Python package (python/), with the programs inside, and prints its path.
set -euo pipefail

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  cat <<'USAGE'
Usage: deploy/build_wheel.sh [FOLDER]

  FOLDER   where the wheel goes, after older ones there were removed; build/python/wheel by default

Needs the programs of deploy/build.sh, python3 with venv, and pip with a network for what builds wheels. The wheel runs where
the C library is not older than this machine's.

  KVBLEND_BIN_DIR   where the programs lie; build/release/bin by default
  KVBLEND_WHEEL     full, or client: without programs, for any platform
USAGE
  exit 0
fi
if [ $# -gt 1 ]; then
  echo "build_wheel.sh: $# arguments; allowed: one folder" >&2
  exit 2
fi
cd "$(dirname "$0")/.."
wheels=$(realpath -m "${1:-build/python/wheel}")
export KVBLEND_BIN_DIR=${KVBLEND_BIN_DIR:-$PWD/build/release/bin}
if [ "${KVBLEND_WHEEL:-full}" = full ] && [ ! -x "$KVBLEND_BIN_DIR/kvblend-server" ]; then
  echo "build_wheel.sh: there is no $KVBLEND_BIN_DIR/kvblend-server; ./deploy/build.sh release makes it" >&2
  exit 1
fi

# Not in the tree itself: setuptools puts its files beside the sources.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/deploy"
cp -r python proto CMakeLists.txt "$scratch"
cp deploy/fetch_model.sh "$scratch/deploy"
python3 -m venv "$scratch/venv"
mkdir -p "$wheels"
rm -f "$wheels"/kvblend-*.whl
"$scratch/venv/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$wheels" "$scratch/python" >&2
echo "$wheels"/kvblend-*.whl
