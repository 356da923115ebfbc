#!/usr/bin/env bash
# Builds the wheel of python/, installs it into an environment of its own, and tests what is installed there: the clients and
# `kvblend serve`, and with --integrations LangChain, LlamaIndex and Haystack too, all against the wheel's own server.
set -euo pipefail

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  cat <<'USAGE'
Usage: tests/python/run.sh [--integrations] [PYTEST_ARGUMENT...]

  KVBLEND_BIN_DIR  the programs that go into the wheel; build/release/bin by default
  KVBLEND_MODEL    the model to serve; models/SmolLM2-135M-Instruct.Q4_1.gguf by default
USAGE
  exit 0
fi
cd "$(dirname "$0")/../.."
requirements=(--requirement tests/python/requirements.txt)
integrations=false
if [ "${1:-}" = --integrations ]; then
  integrations=true
  requirements+=(--requirement tests/python/requirements-integrations.txt)
  shift
fi

options=()
if $integrations; then
  # LangChain's suite: its asynchronous tests are not marked, and nobody asks here how long a constructor takes.
  options=(--override-ini asyncio_mode=auto --benchmark-disable)
fi
readonly VENV=build/python/venv
wheel=$(./deploy/build_wheel.sh build/python/wheel)
[ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
"$VENV/bin/python" -m pip install --quiet "$wheel" "${requirements[@]}"
# The version is the same for every build of a tree.
"$VENV/bin/python" -m pip install --quiet --no-deps --force-reinstall "$wheel"
if $integrations; then
  # From elsewhere, so that the sources of the tree are not taken for the package.
  (cd build/python && venv/bin/python -m mypy --config-file ../../python/pyproject.toml --cache-dir mypy --package kvblend)
fi
PYTHONDONTWRITEBYTECODE=1 "$VENV/bin/python" -m pytest -p no:cacheprovider -ra "${options[@]}" "$@" tests/python
