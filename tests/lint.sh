#!/usr/bin/env bash
# Checks the formatting of the C++ sources; with --fix formats in place, with --tidy also runs clang-tidy, of the files that
# are named or, which takes the better part of an hour, of all.
set -euo pipefail

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  echo "Usage: tests/lint.sh [--fix | --tidy [FILE...]]"
  exit 0
fi

cd "$(dirname "$0")/.."
./deploy/install_dependencies.sh --lint
mapfile -t sources < <(find base kernels engine server tests -name '*.h' -o -name '*.cc' -o -name '*.cu' | sort)

case "${1:-}" in
  "") clang-format-14 --dry-run --Werror "${sources[@]}" ;;
  --fix) clang-format-14 -i "${sources[@]}" ;;
  --tidy)
    if (($# > 1)); then
      sources=("${@:2}")
      units=("${sources[@]}")
    else
      mapfile -t units < <(find base kernels engine server -name '*.cc' | sort)
    fi
    clang-format-14 --dry-run --Werror "${sources[@]}"
    # Configured for it alone: clang-tidy can't read headers that g++ has precompiled, and wants a command for each file, not
    # for joined ones. Nothing is compiled, but the generated headers must be there.
    cmake -S . -B build/tidy -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVBLEND_PCH=OFF -DKVBLEND_UNITY=OFF >/dev/null
    cmake --build build/tidy --target generated_headers >/dev/null
    printf '%s\n' "${units[@]}" |
      xargs -P "$(nproc)" -n 1 clang-tidy-14 -p build/tidy --quiet --warnings-as-errors='*' \
        --extra-arg=-Wno-unused-command-line-argument  # g++'s own flags
    ;;
  *)
    echo "lint.sh: unknown argument '$1'; allowed: --fix, --tidy" >&2
    exit 2
    ;;
esac
