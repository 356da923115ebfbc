#!/usr/bin/env bash
# `pip install` of the wheel and `kvblend serve` end in an answered request on a bare Debian 12 that has python3 with venv and nothing
# else: builds the wheel, makes such a system in a scratch folder, and measures from pip to the answer, which may take two minutes. Needs root, for
# chroot, a mirror of Debian, and PyPI, from where the model comes too.
#
# Exit status 77, and the reason on the last line: could not be tried here.
set -euo pipefail

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  echo "Usage: tests/deploy/check_wheel.sh"
  exit 0
fi
cd "$(dirname "$0")/../.."
readonly GOAL_SECONDS=120 WAIT_SECONDS=600
source tests/deploy/bare_debian.sh

wheel=$(./deploy/build_wheel.sh "$scratch/wheel")
echo "$(basename "$wheel"): $(($(stat --format %s "$wheel") / 1000000)) MB"
make_debian --include=python3,python3-venv
prepare_chroot
# How this machine's pip reaches PyPI.
pip_environment=()
while IFS= read -r setting; do pip_environment+=("$setting"); done < <(env | grep '^PIP_' || true)
for file in /etc/pip.conf "${PIP_CERT:-}" $(python3 -m pip config get global.cert 2>/dev/null || true); do
  [ ! -f "$file" ] || install -D -m 644 "$(realpath "$file")" "$root$file"
done
cp "$wheel" "$root/root/"
in_root() {
  chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin ${pip_environment[@]+"${pip_environment[@]}"} "$@"
}

start=$SECONDS
in_root python3 -m venv /root/venv
in_root /root/venv/bin/pip install --quiet "/root/$(basename "$wheel")" || fail "pip install failed"
echo "installed after $((SECONDS - start)) s"
# Ports of its own, for this machine may have a server. exec: the signal at the end is the server's.
(
  exec chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin ${pip_environment[@]+"${pip_environment[@]}"} \
    /root/venv/bin/kvblend serve --grpc-address 127.0.0.1:0 --http-address 127.0.0.1:0 --api-address 127.0.0.1:0
) >"$scratch/out" 2>"$scratch/log" &
server_pid=$!
until grep -q max_tokens "$scratch/out"; do
  kill -0 "$server_pid" 2>/dev/null && ((SECONDS - start < WAIT_SECONDS)) ||
    fail "kvblend serve did not get ready: $(tail -n 20 "$scratch/log")"
  sleep 0.2
done
echo "ready after $((SECONDS - start)) s"
sed 's/^/  /' "$scratch/out"
url=$(sed -n 's/^URL *//p' "$scratch/out")
key=$(sed -n 's/^key *//p' "$scratch/out")
answer=$(in_root /root/venv/bin/python -c '
import sys, kvblend
client = kvblend.HttpClient(sys.argv[1], api_key=sys.argv[2])
print(client.generate("What is the capital of Norway?", ["Oslo is the capital of Norway.\n"]).text)' "$url" "$key") ||
  fail "the request failed"
[ -n "$answer" ] || fail "the answer is empty"
seconds=$((SECONDS - start))
echo "answered after $seconds s: $answer"
kill -TERM "$server_pid"
wait "$server_pid" || fail "kvblend serve ended with $? after SIGTERM"
server_pid=
((seconds <= GOAL_SECONDS)) || fail "answered $seconds s after pip install began; allowed: $GOAL_SECONDS s"
echo "check_wheel.sh: a bare Debian 12 with python3 has answered $seconds s after pip install began"
