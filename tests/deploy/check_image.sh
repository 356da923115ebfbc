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
Usage: tests/deploy/check_image.sh [--cuda] [--save ARCHIVE]

  --cuda          build the variant for GPUs, and ask it on the CPU; its size is told, not bounded
  --save ARCHIVE  keep the image in this file, as `docker save` writes it

  KVBLEND_MODEL  the model to serve; the default one, fetched if it is not there
USAGE
  exit 0
fi

cuda=0 archive=
while [ $# -gt 0 ]; do
  case $1 in
    --cuda) cuda=1 ;;
    --save)
      [ $# -ge 2 ] || { echo "check_image.sh: --save needs a file" >&2 && exit 2; }
      archive=$(realpath "$2")
      shift
      ;;
    *) echo "check_image.sh: unknown argument '$1'" >&2 && exit 2 ;;
  esac
  shift
done
cd "$(dirname "$0")/../.."
source tests/deploy/bare_debian.sh buildah unshare
unshare --net --mount true 2>/dev/null || skip "may make no namespaces"

readonly MAX_IMAGE_MEGABYTES=150
model=$(realpath "${KVBLEND_MODEL:-$(./deploy/fetch_model.sh | tail -n 1)}")
storage=(--root "$scratch/storage" --runroot "$scratch/run" --storage-driver vfs)
clean_up_more() {
  buildah "${storage[@]}" rm --all >/dev/null 2>&1 || true
}

make_debian
container=$(buildah "${storage[@]}" from scratch)
cp -a "$root/." "$(buildah "${storage[@]}" mount "$container")/"
buildah "${storage[@]}" config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
buildah "${storage[@]}" commit --quiet "$container" localhost/kvblend-debian >/dev/null
buildah "${storage[@]}" rm "$container" >/dev/null
rm -rf --one-file-system "$root"

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
mounted=$(buildah "${storage[@]}" mount "$container")
size=$(du --summarize --block-size=1000000 --apparent-size "$mounted" | cut -f 1)
echo "size: $size MB"
if ((cuda == 1)); then
  cublas=$(basename "$mounted"/usr/lib/x86_64-linux-gnu/libcublasLt.so.*)
  chroot "$mounted" /lib64/ld-linux-x86-64.so.2 --list "/usr/lib/x86_64-linux-gnu/$cublas" >/dev/null ||
    fail "the image has no cuBLASLt, or not what that loads"
fi
((cuda == 1 || size < MAX_IMAGE_MEGABYTES)) || fail "the image has $size MB; allowed: less than $MAX_IMAGE_MEGABYTES"
buildah "${storage[@]}" inspect --type image localhost/kvblend >"$scratch/image.json"
unshare --net --mount python3 -B tests/deploy/ask_image.py "$scratch/image.json" "$mounted" "$model" ||
  fail "the image does not serve as it should"
[ -z "$archive" ] || buildah "${storage[@]}" push --quiet localhost/kvblend "docker-archive:$archive:kvblend:latest" >/dev/null
echo "check_image.sh: the image builds, serves over gRPC and HTTP on a read-only root, and drains"
