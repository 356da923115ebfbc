#!/usr/bin/env bash
# From a fresh Debian 12 machine to answered RAG requests: installs packages, builds, fetches the model, starts the
# server on loopback, sends it real questions with their passages, and prints what blending saved.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: deploy/quickstart.sh [--model NAME] [--keep-running] [--no-install] [--correction]

  --model NAME     a model that deploy/fetch_model.sh knows: smollm2 (the default), gemma3-270m
  --correction     before the server starts, learn how to correct stored KV (deploy/make_correction.sh), so that the first
                   request gains: some minutes the first time. Without it the server learns from what it is asked
  --keep-running   leave the server running at the end and print how to use it
  --no-install     take the packages as they are

Everything stays below build/ and models/. Details are logged to build/quickstart.log.
USAGE
}

cd "$(dirname "$0")/.."
keep_running=false
install=true
correction=false
model_name=smollm2
while [ $# -gt 0 ]; do
  argument=$1
  shift
  case "$argument" in
    --model)
      if [ $# -eq 0 ]; then
        echo "quickstart.sh: --model has no name; allowed: smollm2, gemma3-270m" >&2
        exit 2
      fi
      model_name=$1
      shift
      ;;
    --model=*) model_name=${argument#--model=} ;;
    --keep-running) keep_running=true ;;
    --no-install) install=false ;;
    --correction) correction=true ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "quickstart.sh: unknown argument '$argument'" >&2
      usage >&2
      exit 2
      ;;
  esac
done

# The packaged Gemma is the base model, without a chat template: it writes on behind a cue.
format=() cue=''
case "$model_name" in
  smollm2) ;;
  gemma3-270m) format=(--chat-format plain) cue=$'\nAnswer:' ;;
  *)
    echo "quickstart.sh: the model is '$model_name'; allowed: smollm2, gemma3-270m" >&2
    exit 2
    ;;
esac

readonly BIN=build/release/bin
readonly LOG=build/quickstart.log
readonly SERVER_LOG=build/quickstart-server.log
readonly SAMPLE=tests/fixtures/musique_sample.json
readonly QUESTIONS=2 PASSAGES=4 RATIO=0.15
readonly READY_SECONDS=120 STOP_SECONDS=30

mkdir -p build
: >"$LOG"
server_pid=
scratch=$(mktemp -d)

stop_server() {
  [ -n "$server_pid" ] || return 0
  local pid=$server_pid
  server_pid=
  kill -TERM "$pid" 2>/dev/null || true
  for ((i = 0; i < STOP_SECONDS * 10; i++)); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  if kill -KILL "$pid" 2>/dev/null; then
    echo "The server did not stop within $STOP_SECONDS seconds and was killed; see $SERVER_LOG." >&2
  fi
  wait "$pid" 2>/dev/null || true
}

clean_up() {
  local status=$?
  trap - EXIT
  stop_server
  rm -rf "$scratch"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
  echo "quickstart.sh: $1" >&2
  exit 1
}

# logged WHAT COMMAND...: runs quietly; on failure shows the end of what the command printed.
logged() {
  local what=$1 start=$SECONDS
  shift
  printf '%s ... ' "$what"
  printf '\n### %s\n' "$what" >>"$LOG"
  if ! "$@" >"$scratch/output" 2>&1; then
    cat "$scratch/output" >>"$LOG"
    printf 'failed. The last lines were:\n\n'
    tail -n 30 "$scratch/output"
    fail "'$*' failed; the whole log is in $LOG"
  fi
  cat "$scratch/output" >>"$LOG"
  printf '%d s\n' $((SECONDS - start))
}

! $install || logged "Installing packages" ./deploy/install_dependencies.sh
logged "Building (minutes the first time)" ./deploy/build.sh release kvblend-server kvblend
logged "Fetching the model" ./deploy/fetch_model.sh "$model_name"
model=$(tail -n 1 "$scratch/output")
[ -f "$model" ] || fail "deploy/fetch_model.sh printed '$model', which is no file"
! $correction || logged "Learning a correction (minutes the first time)" ./deploy/make_correction.sh "$model" ${format[@]+"${format[@]}"}

# Free ports for a server that goes away again; the default ones for a server that stays.
addresses=(--grpc-address 127.0.0.1:0 --http-address 127.0.0.1:0 --api-address 127.0.0.1:0)
! $keep_running || addresses=()
start=$SECONDS
printf 'Starting the server ... '
setsid "$BIN/kvblend-server" --model "$model" ${format[@]+"${format[@]}"} ${addresses[@]+"${addresses[@]}"} --port-file "$scratch/ports" \
  >"$SERVER_LOG" 2>&1 </dev/null &
server_pid=$!
grpc_address=''
http_address=''
api_address=''
until [ -n "$grpc_address" ] && "$BIN/kvblend" health --server "$grpc_address" >/dev/null 2>&1; do
  if ! kill -0 "$server_pid" 2>/dev/null || ((SECONDS - start > READY_SECONDS)); then
    printf 'failed. The last lines of its log:\n\n'
    tail -n 30 "$SERVER_LOG"
    fail "the server is not ready; its log is $SERVER_LOG"
  fi
  if [ -z "$grpc_address" ] && [ -f "$scratch/ports" ]; then
    grpc_address=127.0.0.1:$(sed -n 's/^grpc=//p' "$scratch/ports")
    http_address=127.0.0.1:$(sed -n 's/^http=//p' "$scratch/ports")
    api_address=127.0.0.1:$(sed -n 's/^api=//p' "$scratch/ports")
  fi
  sleep 0.2
done
printf 'ready on %s after %d s\n' "$grpc_address" $((SECONDS - start))

cat <<TEXT

$QUESTIONS multi-document questions (MuSiQue), $PASSAGES passages each, through gRPC:
  full    computes every token          prefix  reuses what a prefix cache would
  reuse   reuses every passage as it is  blend   reuses every passage and recomputes ${RATIO#0.}% of the tokens

TEXT
python3 - "$SAMPLE" "$cue" >"$scratch/sample.json" <<'PYTHON'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    print(json.dumps([question | {"cue": sys.argv[2]} for question in json.load(file)]))
PYTHON
"$BIN/kvblend" bench --server "$grpc_address" --data "$scratch/sample.json" --n "$QUESTIONS" --passages "$PASSAGES" \
  --modes full,prefix,reuse,blend --ratio "$RATIO" --measure ttft,kl --repeat 1 \
  --json "$scratch/bench.jsonl" | tee -a "$LOG" || fail "the bench failed; see $LOG and $SERVER_LOG"

# Passages that were stored one by one, in an order of their own: nothing that a prefix cache could use.
python3 - "$SAMPLE" "$PASSAGES" "$cue" >"$scratch/request.json" <<'PYTHON'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    question = json.load(file)[0]
passages = question["ctxs"][: int(sys.argv[2])][::-1]
print(json.dumps({
    "prompt": {
        "system_text": "You are a helpful AI assistant. Answer the question based on the given passages. "
                       "Answer with a few words only.",
        "lead_in": "Passages:\n\n",
        "chunks": [f"{passage['title']}\n{passage['text']}\n\n" for passage in passages],
        "question": f"Question: {question['question']}\nAnswer the question with a few words only." + sys.argv[3],
    },
    "sampling": {"max_tokens": 48},
}))
PYTHON
printf '\nOne answer, streamed, its passages stored before and now in reversed order:\n\n'
"$BIN/kvblend" generate --server "$grpc_address" --put --request "$scratch/request.json" 2>&1 |
  tee -a "$LOG" || fail "the request failed; see $LOG and $SERVER_LOG"

python3 - "$scratch/bench.jsonl" <<'PYTHON'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    modes = {row["mode"]: row for row in map(json.loads, file)}
full, prefix, blend = modes["full"], modes["prefix"], modes["blend"]


def computed(row):
    return row["recomputed_tokens_mean"] + row["computed_tokens_mean"]


def times(row):
    return full["ttft_s"]["p50"] / row["ttft_s"]["p50"]


print()
print(f"What blending saved: of {blend['prompt_tokens_mean']:.0f} prompt tokens it computed {computed(blend):.0f}, "
      f"a prefix cache {computed(prefix):.0f}.")
print(f"The first token came after {blend['ttft_s']['p50']:.2f} s instead of {full['ttft_s']['p50']:.2f} s: "
      f"{times(blend):.1f} times sooner (prefix cache: {times(prefix):.1f} times).")
print(f"Divergence from full prefill (KL, nats per token): {blend['kl_mean']:.3f}; "
      f"with plain reuse {modes['reuse']['kl_mean']:.3f}.")
PYTHON

if $keep_running; then
  cat <<TEXT

The server keeps running (process $server_pid, log $SERVER_LOG).
Open http://$api_address/ui in a browser, or try:
  $BIN/kvblend info --server $grpc_address
  $BIN/kvblend generate --server $grpc_address --chunk 'Oslo is the capital of Norway. ' --question 'What is the capital of Norway?'
  curl http://$http_address/metrics
Stop it with: kill $server_pid
TEXT
  server_pid=
fi
