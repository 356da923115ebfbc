# What the checks on a bare Debian 12 share. Sourced, in the root of the checkout:
#   source tests/deploy/bare_debian.sh TOOL...
# ends the check with `skip` unless it runs as root, for chroot, and each TOOL is there, beside debootstrap itself. From then on
# $scratch is a folder that goes away when the check ends, as does the server whose process id stands in $server_pid.
# A check with more to clean up defines `clean_up_more`.

skip() {
  echo "$(basename "$0"): skipped: $1"
  exit 77
}
fail() {
  echo "$(basename "$0"): $1" >&2
  exit 1
}

[ "$(id -u)" -eq 0 ] || skip "needs root"
for tool in debootstrap "$@"; do
  command -v "$tool" >/dev/null || skip "needs $tool (the Debian package of that name)"
done

scratch=$(mktemp -d)
root=$scratch/root
server_pid=
clean_up() {
  [ -z "$server_pid" ] || { kill "$server_pid" && wait "$server_pid"; } 2>/dev/null || true
  ! declare -F clean_up_more >/dev/null || clean_up_more
  ! mountpoint --quiet "$root/proc" || umount "$root/proc"
  rm -rf --one-file-system "$scratch"
}
trap clean_up EXIT

# make_debian [--include=PACKAGE,...]: a minimal Debian 12 in $root, from KVBLEND_DEBIAN_MIRROR, or else from the mirror that this
# machine's apt uses; where that does not say, from debootstrap's own.
make_debian() {
  local mirror
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1 || true)
  mirror=${KVBLEND_DEBIAN_MIRROR:-$mirror}
  debootstrap --variant=minbase "$@" bookworm "$root" ${mirror:+"$mirror"} >"$scratch/debootstrap.log" 2>&1 ||
    skip "debootstrap could not make a Debian 12: $(tail -n 1 "$scratch/debootstrap.log")"
}

# prepare_chroot: what programs inside $root expect, and this machine's name servers.
prepare_chroot() {
  mount -t proc proc "$root/proc"
  cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
}
