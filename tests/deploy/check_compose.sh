#!/usr/bin/env bash
# deploy/compose runs: starts the stack with a Docker daemon of its own, whose files lie in a folder that goes away and whose networks
# are in a namespace that ends with it, so nothing of this machine's Docker is touched and no port is taken. In place of the images
# that compose.yaml names, Redis and Prometheus are those of a Debian made by debootstrap, with the users, folders and arguments of
# the originals; Grafana, which Debian does not have, is left out. Needs root and a mirror of Debian.
#
# Exit status 77, and the reason on the last line: could not be tried here.
set -euo pipefail

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  cat <<'USAGE'
Usage: tests/deploy/check_compose.sh

  KVBLEND_IMAGE_ARCHIVE  the image, as `docker save` writes it; tests/deploy/check_image.sh makes one if none is given
  KVBLEND_MODEL          the model to serve; the default one, fetched if it is not there
USAGE
  exit 0
fi

cd "$(dirname "$0")/../.."
source tests/deploy/bare_debian.sh dockerd docker unshare
docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null ||
  skip "needs Docker Compose (Debian: docker-compose)"
unshare --net --mount --pid --fork true 2>/dev/null || skip "may make no namespaces"

model=$(realpath "${KVBLEND_MODEL:-$(./deploy/fetch_model.sh | tail -n 1)}")
image=${KVBLEND_IMAGE_ARCHIVE:-}
if [ -z "$image" ]; then
  image=$scratch/kvblend.tar
  status=0
  KVBLEND_MODEL=$model ./tests/deploy/check_image.sh --save "$image" || status=$?
  ((status != 77)) || skip "no image could be built"
  ((status == 0)) || fail "the image is not as it should be"
fi

make_debian --include=redis-server,prometheus
# As in the original images: Redis' data belongs to 999, Prometheus' to nobody, and its configuration is mounted.
install -d -o 999 -g 999 "$root/data"
install -d -o 65534 -g 65534 "$root/prometheus"
rm -rf "$root/etc/prometheus" "$root/var/cache/apt/archives"
mkdir "$root/etc/prometheus"
tar --directory "$root" --create --file "$scratch/debian.tar" .
rm -rf --one-file-system "$root"

# Whatever is still running in these namespaces ends with them.
status=0
unshare --net --mount --pid --fork --kill-child --mount-proc \
  python3 -B tests/deploy/ask_compose.py "$scratch" "$(realpath "$image")" "$model" || status=$?
((status != 77)) || skip "Docker's daemon does not start"
((status == 0)) || fail "the stack does not work as it should"
echo "check_compose.sh: the stack comes up, keeps chunks in Redis, is scraped, drains, and comes up again"
