#!/usr/bin/env bash
# The Debian package installs and starts on a bare Debian 12: makes the package, a bare system in a scratch folder,
# installs the package there with apt, starts the server and asks it for an answer. Needs root, for chroot, and
# a mirror of Debian.
#
# Exit status 77, and the reason on the last line: could not be tried here.
set -euo pipefail

cd "$(dirname "$0")/../.."
readonly READY_SECONDS=120
source tests/deploy/bare_debian.sh

model=${KVBLEND_MODEL:-$(./deploy/fetch_model.sh | tail -n 1)}
./deploy/build.sh release kvblend-server kvblend >"$scratch/build.log" 2>&1 ||
  fail "the build failed: $(tail -n 20 "$scratch/build.log")"
(cd build/release && cpack -B "$scratch/package") >"$scratch/cpack.log" 2>&1 ||
  fail "cpack failed: $(tail -n 20 "$scratch/cpack.log")"
package=$(echo "$scratch"/package/kvblend_*.deb)
dpkg-deb --field "$package" Package Version Depends

make_debian
prepare_chroot
cp "$package" "$root/tmp/kvblend.deb"
install -D -m 644 "$model" "$root/var/lib/kvblend/model.gguf"

in_root() {
  chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"
}
start=$SECONDS
in_root apt-get -qq update
in_root apt-get -qq install -y --no-install-recommends /tmp/kvblend.deb >"$scratch/install.log" 2>&1 ||
  fail "apt-get install failed: $(tail -n 20 "$scratch/install.log")"
in_root kvblend --help >/dev/null
[ "$(in_root dpkg-query --show --showformat='${Conffiles}' kvblend | awk '{ print $1 }')" = /etc/kvblend/server.conf ] ||
  fail "/etc/kvblend/server.conf is not a configuration file of the package"

# As the unit starts it, for there is no systemd in a chroot.
unit=$root/usr/lib/systemd/system/kvblend-server.service
mapfile -t environment < <(sed -n 's/^Environment=//p' "$unit")
chroot "$root" env -i PATH=/usr/bin "${environment[@]}" "$(sed -n 's/^ExecStart=//p' "$unit")" \
  --grpc-address 127.0.0.1:0 --http-address 127.0.0.1:0 --api-address 127.0.0.1:0 --port-file /tmp/ports >"$scratch/server.log" 2>&1 &
server_pid=$!
for ((i = 0; ; i++)); do
  port=$(sed -n 's/^grpc=//p' "$root/tmp/ports" 2>/dev/null || true)
  [ -z "$port" ] || ! in_root kvblend health --server "127.0.0.1:$port" >/dev/null 2>&1 || break
  kill -0 "$server_pid" 2>/dev/null && ((i < READY_SECONDS * 5)) ||
    fail "the server is not ready: $(tail -n 20 "$scratch/server.log")"
  sleep 0.2
done
answer=$(in_root kvblend generate --server "127.0.0.1:$port" --chunk 'Oslo is the capital of Norway. ' \
  --question 'What is the capital of Norway?' --max-tokens 16 2>"$scratch/generate.log") ||
  fail "the request failed: $(tail -n 5 "$scratch/generate.log")"
[ -n "$answer" ] || fail "the answer is empty"
seconds=$((SECONDS - start))
echo "answered after $seconds s: $answer"

in_root apt-get -qq purge -y kvblend >/dev/null 2>&1 || fail "apt-get purge failed"
[ ! -e "$root/etc/kvblend/server.conf" ] || fail "purge left /etc/kvblend/server.conf"
echo "check_deb.sh: the package installs, answers and goes away on a bare Debian 12; the answer came $seconds s after apt-get began"
