"""Prometheus' rules and Grafana's dashboard are well-formed; which metrics exist is held against a server in tests/e2e."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

from project import ROOT, read, run

RULES, RULES_TEST = "deploy/prometheus/alerts.yml", "deploy/prometheus/alerts_test.yml"
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=os.path.join(ROOT, "build/tools"))


class AlertsTest(unittest.TestCase):
    @unittest.skipIf(PROMTOOL is None, "no promtool; deploy/install_dependencies.sh --test unpacks one")
    def test_promtool_accepts_rules_and_configuration(self):
        for command, path in (("rules", RULES), ("config", "deploy/prometheus/prometheus.yml")):
            done = run(PROMTOOL, "check", command, path)
            self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    @unittest.skipIf(PROMTOOL is None, "no promtool; deploy/install_dependencies.sh --test unpacks one")
    def test_every_alert_fires_where_it_should(self):
        done = run(PROMTOOL, "test", "rules", RULES_TEST)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    @unittest.skipIf(PROMTOOL is None, "no promtool; deploy/install_dependencies.sh --test unpacks one")
    def test_a_rule_that_never_fires_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "alerts.yml"), "w", encoding="utf-8") as file:
                file.write(read(RULES).replace("kvblend_disk_full == 1", "kvblend_disk_full == 2"))
            shutil.copy(os.path.join(ROOT, RULES_TEST), folder)
            self.assertNotEqual(0, run(PROMTOOL, "test", "rules", os.path.join(folder, "alerts_test.yml")).returncode)

    def test_every_alert_has_a_test(self):
        tested = read(RULES_TEST)
        names = [line.split()[-1] for line in read(RULES).splitlines() if "- alert:" in line]
        self.assertGreater(len(names), 10)
        self.assertEqual([], [name for name in names if f"alertname: {name}\n" not in tested])


class AutoscalerTest(unittest.TestCase):
    """What Kubernetes' autoscaler asks for is what Prometheus' adapter makes of a server's metrics."""

    rule = yaml.safe_load(read("deploy/kubernetes/prometheus-adapter.yaml"))["rules"]["custom"][0]

    def test_both_name_the_same_metric(self):
        autoscaler = yaml.safe_load(read("deploy/kubernetes/base/autoscaling.yaml"))
        self.assertEqual([self.rule["name"]["as"]], [metric["pods"]["metric"]["name"] for metric in autoscaler["spec"]["metrics"]])

    @unittest.skipIf(PROMTOOL is None, "no promtool; deploy/install_dependencies.sh --test unpacks one")
    def test_it_is_the_mean_time_in_the_queue_by_pod_or_what_is_predicted_if_that_is_longer(self):
        query = self.rule["metricsQuery"].replace("<<.GroupBy>>", "pod").replace("<<.LabelMatchers>>", 'namespace="rag"')
        name = self.rule["name"]["as"]
        series = {  # of each minute: three seconds of six requests; none; none, but some wait; and one of another namespace
            "busy": ("rag", "0+3x20", "0+6x20", "0.5x20"), "idle": ("rag", "7+0x20", "9+0x20", "0x20"),
            "jammed": ("rag", "0x20", "0x20", "60x20"), "worse": ("rag", "0+3x20", "0+6x20", "8x20"),
            "other": ("else", "0+9x20", "0+1x20", "9x20"), "loading": ("rag", "0x20", "0x20", "_x20")}
        inputs = []
        for pod, (namespace, seconds, count, predicted) in series.items():
            labels = f'{{namespace="{namespace}", pod="{pod}"}}'
            inputs += [{"series": f"kvblend_request_queue_time_seconds_sum{labels}", "values": seconds},
                       {"series": f"kvblend_request_queue_time_seconds_count{labels}", "values": count},
                       {"series": f"kvblend_predicted_wait_seconds{labels}", "values": predicted},
                       {"series": f"kvblend_ready{labels}", "values": "1+0x20"}]
        expected = [{"labels": f'{name}{{pod="{pod}"}}', "value": value}
                    for pod, value in {"busy": 0.5, "idle": 0, "jammed": 30, "worse": 4, "loading": 0}.items()]
        files = {"rules.yml": {"groups": [{"name": "autoscaler", "rules": [{"record": name, "expr": query}]}]},
                 "test.yml": {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [
                     {"interval": "1m", "input_series": inputs,
                      "promql_expr_test": [{"expr": name, "eval_time": "10m", "exp_samples": expected}]}]}}
        with tempfile.TemporaryDirectory() as folder:
            for file, content in files.items():
                with open(os.path.join(folder, file), "w", encoding="utf-8") as out:
                    yaml.safe_dump(content, out)
            done = run(PROMTOOL, "test", "rules", os.path.join(folder, "test.yml"))
            self.assertEqual(0, done.returncode, done.stdout + done.stderr)


class DashboardTest(unittest.TestCase):
    def test_it_is_what_its_script_writes(self):
        with tempfile.NamedTemporaryFile() as file:
            subprocess.run([sys.executable, "-B", os.path.join(ROOT, "deploy/grafana/make_dashboard.py"), file.name], check=True)
            self.assertEqual(file.read().decode(), read("deploy/grafana/dashboards/kvblend.json"),
                             "run deploy/grafana/make_dashboard.py")

    def test_panels_have_numbers_of_their_own_and_do_not_overlap(self):
        panels = json.loads(read("deploy/grafana/dashboards/kvblend.json"))["panels"]
        self.assertEqual(len(panels), len({panel["id"] for panel in panels}))
        cells = set()
        for panel in panels:
            place = panel["gridPos"]
            mine = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
            self.assertFalse(mine & cells, panel["title"])
            self.assertLessEqual(place["x"] + place["w"], 24)
            cells |= mine
