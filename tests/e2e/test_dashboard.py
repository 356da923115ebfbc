"""Every metric that the dashboard and the alerts use is one that a server exports, with the labels that they use."""

import json
import re

import pytest

import http_client
from conftest import CHUNKS, FLAGS, LEAD_IN, ROOT, SYSTEM_TEXT, prompt_of
from test_keys import make_key, shows

DASHBOARD = ROOT / "deploy/grafana/dashboards/kvblend.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
# A server has these once a correction was fitted, which tests/e2e/test_correction_learning.py waits for, and once a chunk was
# computed because that is quicker than loading it (tests/unit/server/metrics_test.cc).
LATER = {"kvblend_correction_deviation_before", "kvblend_correction_deviation_after", "kvblend_bypassed_chunks_total"}
OF_PROMETHEUS = {"instance", "job", "le"}  # labels that are there without the server's doing


def expressions():
    """(where, PromQL)."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for name, rule in re.findall(r"- alert: (\w+)\n\s+expr: (.*?)\n\s+(?:for|labels):", ALERTS.read_text(), re.DOTALL):
        yield name, rule


@pytest.fixture(name="exported", scope="module")
def exported_fixture(v1, start_server, tmp_path_factory):
    """Name -> labels of all metrics of a server with every tier and with a tenant, after requests that missed, hit and were refused."""
    key, line = make_key("--tenant", "t")
    (keys := tmp_path_factory.mktemp("keys") / "keys.jsonl").write_text(line + "\n")
    # Nothing listens at port 1: a server with a Redis that is away exports the same.
    server = start_server(*FLAGS, "--chunk-disk-path", tmp_path_factory.mktemp("disk"), "--chunk-redis", "127.0.0.1:1",
                          "--api-keys", keys)
    list(server.chunks.Put(v1.PutChunksRequest(system_text=SYSTEM_TEXT, lead_in=LEAD_IN, chunks=CHUNKS), **shows(key)))
    for chunks in (CHUNKS, CHUNKS[::-1], ["Not stored.\n", *CHUNKS]):
        server.generate(v1.GenerateRequest(prompt=prompt_of(v1, chunks), sampling=v1.SamplingOptions(max_tokens=4)),
                        **shows(key))
    server.wait_until_idle()
    with http_client.client_of(server, api_key=key) as client:
        client.completions.create(model="", prompt="Hello.", max_tokens=1)
    found = {}
    for sample in server.metrics():
        name, labels = re.fullmatch(r"(\w+)(?:\{(.*)\})?", sample).groups()
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
    return found


def test_every_metric_is_exported(exported):
    used = {name for _, expression in expressions() for name in re.findall(r"\bkvblend_\w+", expression)}
    assert len(used) > 40
    assert used - set(exported) == LATER
    assert all(f"`{name}`" in (ROOT / "docs/metrics.md").read_text() for name in LATER)


def test_every_exported_metric_is_documented(exported):
    listed = (ROOT / "docs/metrics.md").read_text()
    names = {re.sub(r"_(?:bucket|sum|count)$", "", name) for name in exported}
    assert sorted(name for name in names if f"`{name}`" not in listed) == []


def test_every_label_is_exported(exported):
    wrong = []
    for where, expression in expressions():
        names = re.findall(r"\bkvblend_\w+", expression)
        known = set().union(OF_PROMETHEUS, *(exported.get(name, ()) for name in names))
        used = set(re.findall(r"(\w+)=~?\"", expression))
        for group in re.findall(r"\b(?:by|ignoring) \(([^)]*)\)", expression):
            used.update(re.findall(r"\w+", group))
        wrong += [f"{where}: {label}" for label in used - known]
    assert not wrong


def test_the_expressions_are_found():
    assert len(list(expressions())) > 50
    assert sum(1 for _ in re.finditer("- alert:", ALERTS.read_text())) == len(
        [1 for where, _ in expressions() if where.startswith("Kvblend")])
