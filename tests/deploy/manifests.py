"""Holds rendered manifests to Kubernetes' schemas, to each other, and to the server: manifests.py FILE...

KVBLEND_BIN_DIR is where kvblend-server lies, whose --help lists the settings that there are.
"""

import os
import re
import sys

import kubernetes_validate
import yaml

from project import BIN, output_of

WITHOUT_SCHEMA = {"ServiceMonitor"}  # a custom resource of the Prometheus operator


class Wrong(Exception):
    pass


def require(condition, what):
    if not condition:
        raise Wrong(what)


def matches(selector, labels):
    return bool(selector) and all(labels.get(name) == value for name, value in selector.items())


class Manifests:
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.all = [manifest for manifest in yaml.safe_load_all(file) if manifest]

    def of(self, kind):
        return [manifest for manifest in self.all if manifest["kind"] == kind]

    def named(self, kind, name):
        (found,) = [manifest for manifest in self.of(kind) if manifest["metadata"]["name"] == name]
        return found

    @property
    def workloads(self):
        return self.of("StatefulSet") + self.of("Deployment")


def check_schemas(manifests):
    for manifest in manifests.all:
        if manifest["kind"] not in WITHOUT_SCHEMA:
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    require({manifest["kind"] for manifest in manifests.all} >= {
        "StatefulSet", "Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "ServiceMonitor", "NetworkPolicy",
        "ConfigMap", "PersistentVolumeClaim"}, "a kind of manifest is missing")


def check_references(manifests):
    """Whatever names something names what is there."""
    pods = {workload["metadata"]["name"]: workload["spec"]["template"] for workload in manifests.workloads}
    labels = [pod["metadata"]["labels"] for pod in pods.values()]
    for workload in manifests.workloads:
        require(matches(workload["spec"]["selector"]["matchLabels"], workload["spec"]["template"]["metadata"]["labels"]),
                f"{workload['metadata']['name']} does not select its own pods")
        spec = workload["spec"]["template"]["spec"]
        claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())}
        volumes = {volume["name"] for volume in spec["volumes"]} | claims
        for container in spec["containers"]:
            for volume in container["volumeMounts"]:
                require(volume["name"] in volumes, f"there is no volume {volume['name']}")
            for source in container.get("envFrom", ()):
                manifests.named("ConfigMap", source["configMapRef"]["name"])
        for volume in spec["volumes"]:
            if "configMap" in volume:
                manifests.named("ConfigMap", volume["configMap"]["name"])
            if "persistentVolumeClaim" in volume:
                manifests.named("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
    for service in manifests.of("Service"):
        selected = [pod for pod in pods.values() if matches(service["spec"]["selector"], pod["metadata"]["labels"])]
        require(len(selected) == 1, f"{service['metadata']['name']} selects {len(selected)} kinds of pods")
        names = {port["name"] for container in selected[0]["spec"]["containers"] for port in container["ports"]}
        for port in service["spec"]["ports"]:
            require(port["targetPort"] in names, f"{service['metadata']['name']} leads to port {port['targetPort']}")
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        for manifest in manifests.of(kind):
            selector = manifest["spec"].get("selector") or manifest["spec"]["podSelector"]
            require(any(matches(selector["matchLabels"], pod) for pod in labels),
                    f"{kind} {manifest['metadata']['name']} selects no pods")
    for scaler in manifests.of("HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        require("replicas" not in manifests.named(target["kind"], target["name"])["spec"],
                "the autoscaler and the manifest both set the replicas")
    server = manifests.named("StatefulSet", "kvblend")
    manifests.named("Service", server["spec"]["serviceName"])
    (monitor,) = manifests.of("ServiceMonitor")
    watched = [service for service in manifests.of("Service")
               if matches(monitor["spec"]["selector"]["matchLabels"], service["metadata"].get("labels", {}))]
    require([port["name"] for service in watched for port in service["spec"]["ports"]].count(
        monitor["spec"]["endpoints"][0]["port"]) == 1, "the ServiceMonitor finds not one port of metrics")


def check_security(manifests):
    for workload in manifests.workloads:
        spec = workload["spec"]["template"]["spec"]
        require(spec["automountServiceAccountToken"] is False, "a pod gets a token that it does not need")
        require(spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0, "a pod runs as root")
        for container in spec["containers"]:
            context = container["securityContext"]
            require(context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
                    and context["capabilities"]["drop"] == ["ALL"], f"{container['name']} may more than it needs")
            require("memory" in container["resources"]["limits"], f"{container['name']} has no limit of memory")
            for probe in ("readinessProbe", "livenessProbe"):
                require(probe in container, f"{container['name']} has no {probe}")


def check_settings(manifests, server_settings):
    """The environment of the servers is settings that there are, for ports and paths that the pod has."""
    server = manifests.named("StatefulSet", "kvblend")["spec"]["template"]["spec"]
    (container,) = server["containers"]
    settings = manifests.named("ConfigMap", container["envFrom"][0]["configMapRef"]["name"])["data"]
    for name in settings:
        require(name in server_settings, f"the server has no setting {name}")
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    for name, variable in (("api", "API"), ("grpc", "GRPC"), ("metrics", "HTTP")):
        require(settings[f"KVBLEND_{variable}_ADDRESS"].split(":")[1] == ports[name], f"the port {name} is another")
    mounts = [volume["mountPath"] for volume in container["volumeMounts"]]
    for name, value in settings.items():
        if value.startswith("/"):
            require(any(value.startswith(f"{mount}/") for mount in mounts), f"{name}={value} is on no volume")
    require("KVBLEND_ALLOW_UNAUTHENTICATED" not in settings and "KVBLEND_API_KEYS" in settings, "the servers need no keys")
    grace, drain = server["terminationGracePeriodSeconds"], int(settings["KVBLEND_DRAIN_TIMEOUT"])
    require(grace >= drain + container["lifecycle"]["preStop"]["sleep"]["seconds"] + 10, "draining may take longer than the pod lives")


def main(paths):
    help_text = output_of(os.path.join(BIN, "kvblend-server"), "--help")
    settings = set(re.findall(r"\(Env:(KVBLEND_[A-Z_]+)\)", help_text))
    for path in paths:
        manifests = Manifests(path)
        try:
            check_schemas(manifests)
            check_references(manifests)
            check_security(manifests)
            check_settings(manifests, settings)
        except (Wrong, kubernetes_validate.ValidationError) as error:
            sys.exit(f"{path}: {error}")
        print(f"{os.path.basename(path)}: {len(manifests.all)} manifests")


if __name__ == "__main__":
    main(sys.argv[1:])
