#!/usr/bin/env bash
# The Dockerfile builds, and what it builds serves: makes a Debian 12 with debootstrap as the base, builds the image with buildah,
# which needs no daemon, and starts the image's command as its user, on a read-only root, in a network of its own. Asks it over
# gRPC and HTTP, looks at the image's size, and ends it with SIGTERM while it answers. Needs root, for chroot, and a mirror of
# Debian. Takes as long as compiling does.
#
# Exit status 77, and the reason on the last line: could not be tried here.
set -euo pipefail

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  cat <<'USAGE'
Usage: tests/deploy/check_image.sh [--cuda]

  --cuda  build the variant for GPUs, and ask it on the CPU; its size is told, not bounded

  KVBLEND_MODEL  the model to serve; the default one, fetched if it is not there
USAGE
  exit 0
fi

skip() {
  echo "check_image.sh: skipped: $1"
  exit 77
}
fail() {
  echo "check_image.sh: $1" >&2
  exit 1
}

cuda=0
[ "${1:-}" != --cuda ] || cuda=1
cd "$(dirname "$0")/../.."
[ "$(id -u)" -eq 0 ] || skip "needs root"
for tool in debootstrap buildah unshare; do
  command -v "$tool" >/dev/null || skip "needs $tool (the Debian package of that name)"
done
unshare --net --mount true 2>/dev/null || skip "may make no namespaces"

readonly MAX_IMAGE_MEGABYTES=150
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1 || true)
readonly MIRROR=${KVBLEND_DEBIAN_MIRROR:-$mirror}
model=$(realpath "${KVBLEND_MODEL:-$(./deploy/fetch_model.sh | tail -n 1)}")
scratch=$(mktemp -d)
storage=(--root "$scratch/storage" --runroot "$scratch/run" --storage-driver vfs)
clean_up() {
  buildah "${storage[@]}" rm --all >/dev/null 2>&1 || true
  rm -rf --one-file-system "$scratch"
}
trap clean_up EXIT

debootstrap --variant=minbase bookworm "$scratch/debian" ${MIRROR:+"$MIRROR"} >"$scratch/debootstrap.log" 2>&1 ||
  skip "debootstrap could not make a Debian 12: $(tail -n 1 "$scratch/debootstrap.log")"
container=$(buildah "${storage[@]}" from scratch)
cp -a "$scratch/debian/." "$(buildah "${storage[@]}" mount "$container")/"
buildah "${storage[@]}" config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
buildah "${storage[@]}" commit --quiet "$container" localhost/kvblend-debian >/dev/null
buildah "${storage[@]}" rm "$container" >/dev/null
rm -rf --one-file-system "$scratch/debian"

# What this machine has compiled before, and whom its pip trusts.
volumes=()
if command -v ccache >/dev/null; then
  cache=$(ccache --get-config cache_dir)
  mkdir -p "$cache"
  volumes+=(--volume "$cache:/root/.cache/ccache")
fi
authorities=${PIP_CERT:-$(python3 -m pip config get global.cert 2>/dev/null || true)}
if [ -f "$authorities" ]; then
  printf '[global]\ncert = /run/pip-authorities.pem\n' >"$scratch/pip.conf"
  volumes+=(--volume "$scratch/pip.conf:/etc/pip.conf:ro" --volume "$(realpath "$authorities"):/run/pip-authorities.pem:ro")
fi
start=$SECONDS
buildah "${storage[@]}" build --format docker --isolation chroot --pull-never --layers=false --build-arg BASE=localhost/kvblend-debian \
  --build-arg "KVBLEND_CUDA=$cuda" ${volumes[@]+"${volumes[@]}"} --file deploy/docker/Dockerfile --tag localhost/kvblend . \
  >"$scratch/build.log" 2>&1 || fail "the build failed: $(tail -n 30 "$scratch/build.log")"
echo "built in $((SECONDS - start)) s"

container=$(buildah "${storage[@]}" from --pull-never localhost/kvblend)
root=$(buildah "${storage[@]}" mount "$container")
size=$(du --summarize --block-size=1000000 --apparent-size "$root" | cut -f 1)
echo "size: $size MB"
((cuda == 1 || size < MAX_IMAGE_MEGABYTES)) || fail "the image has $size MB; allowed: less than $MAX_IMAGE_MEGABYTES"
buildah "${storage[@]}" inspect --type image localhost/kvblend >"$scratch/image.json"
unshare --net --mount python3 -B tests/deploy/ask_image.py "$scratch/image.json" "$root" "$model" ||
  fail "the image does not serve as it should"
echo "check_image.sh: the image builds, serves over gRPC and HTTP on a read-only root, and drains"
