#!/usr/bin/env bash
# Checks the formatting of the C++ sources; with --tidy also runs clang-tidy (minutes), with --fix formats in place.
set -euo pipefail

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  echo "Usage: tests/lint.sh [--fix | --tidy]   (--tidy needs a build in build/release)"
  exit 0
fi

cd "$(dirname "$0")/.."
./deploy/install_dependencies.sh --lint
mapfile -t sources < <(find base kernels engine server tests -name '*.h' -o -name '*.cc' -o -name '*.cu' | sort)

case "${1:-}" in
  "") clang-format-14 --dry-run --Werror "${sources[@]}" ;;
  --fix) clang-format-14 -i "${sources[@]}" ;;
  --tidy)
    clang-format-14 --dry-run --Werror "${sources[@]}"
    mapfile -t units < <(find base kernels engine server -name '*.cc' | sort)
    printf '%s\n' "${units[@]}" |
      xargs -P "$(nproc)" -n 1 clang-tidy-14 -p build/release --quiet --warnings-as-errors='*'
    ;;
  *)
    echo "lint.sh: unknown argument '$1'; allowed: --fix, --tidy" >&2
    exit 2
    ;;
esac
