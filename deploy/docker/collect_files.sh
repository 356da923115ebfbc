#!/usr/bin/env bash
# Fills a folder with all that programs need to run in an image that has nothing else: the programs, stripped, in
# /usr/local/bin; the shared libraries that they load, where the loader looks for them; users, certificate authorities.
set -euo pipefail

if [ $# -lt 2 ] || [ "$1" = -h ] || [ "$1" = --help ]; then
  echo "Usage: deploy/docker/collect_files.sh FOLDER PROGRAM..."
  [ "${1:-}" = -h ] || [ "${1:-}" = --help ] || exit 2
  exit 0
fi
root=$1
shift

mkdir -p "$root"/{etc/ssl/certs,usr/local/bin,usr/lib64,models}
ln -sfn usr/lib "$root/lib"
ln -sfn usr/lib64 "$root/lib64"
# copy PATH: the file under its own name, whatever links lead to it.
copy() {
  local target=$root${1/#\/lib/\/usr\/lib}
  mkdir -p "$(dirname "$target")"
  cp --dereference "$1" "$target"
}
# copy_needed FILE: the shared libraries that it loads.
copy_needed() {
  local libraries library
  libraries=$(ldd "$1")
  if grep 'not found' <<<"$libraries" >&2; then exit 1; fi
  # "NAME => /PATH (ADDRESS)", and the loader itself without a name.
  while read -r library; do
    copy "$library"
  done < <(grep -o '/[^ ]*' <<<"$libraries" | sort -u)
}
for program in "$@"; do
  strip -o "$root/usr/local/bin/$(basename "$program")" "$program"
  copy_needed "$program"
done
# A build for GPUs loads cuBLASLt when it opens one. What that needs beside the programs' libraries, the driver's libraries need as well.
cublas=$(find -H /opt/cuda -name 'libcublasLt.so.*' 2>/dev/null | head -n 1 || true)
if [ -n "$cublas" ]; then
  mkdir -p "$root/usr/lib/x86_64-linux-gnu"
  cp --dereference "$cublas" "$root/usr/lib/x86_64-linux-gnu/"
  copy_needed "$cublas"
fi

# The C library resolves names by files and DNS without modules of its own; more is not configured.
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
echo 'root:x:0:0:root:/:/sbin/nologin
kvblend:x:10001:10001:kvblend:/:/sbin/nologin' >"$root/etc/passwd"
echo 'root:x:0:
kvblend:x:10001:' >"$root/etc/group"
# Says what the libraries are from: to scanners, and to NVIDIA's toolkit, which puts the driver's libraries beside them.
cp --dereference /etc/os-release /etc/debian_version "$root/etc/"
# For Redis over TLS.
cp --dereference /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
install -d "$root/usr/lib/ssl"
ln -sfn /etc/ssl/certs "$root/usr/lib/ssl/certs"
ln -sfn /etc/ssl/certs/ca-certificates.crt "$root/usr/lib/ssl/cert.pem"
# For --chunk-disk-path: a volume mounted here belongs to the server.
install -d -o 10001 -g 10001 "$root/var/cache/kvblend"
install -d -m 1777 "$root/tmp"
