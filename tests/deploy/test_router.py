"""The router closes its connections to servers before they do: a request on one that a server is closing would be lost."""

import re
import unittest

import yaml

from project import read

ROUTER = "deploy/kubernetes/base/envoy.yaml"
OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def default_of(flag):
    (seconds,) = re.findall(rf"^\| `{flag} SECONDS` \| (\d+) \|", read("docs/operator-guide.md"), re.MULTILINE)
    return float(seconds)


class RouterTest(unittest.TestCase):
    def test_connections_end_before_the_servers_end_them(self):
        clusters = {cluster["name"]: cluster for cluster in yaml.safe_load(read(ROUTER))["static_resources"]["clusters"]}
        for name, flag in (("kvblend_api", "--api-idle-timeout"), ("kvblend_grpc", "--grpc-idle-timeout")):
            options = clusters[name]["typed_extension_protocol_options"][OPTIONS]["common_http_protocol_options"]
            self.assertLess(float(options["idle_timeout"].rstrip("s")), default_of(flag) - 5, name)
        self.assertNotIn("IDLE_TIMEOUT", read("deploy/kubernetes/base/settings.env"))


if __name__ == "__main__":
    unittest.main()
