"""Limits of tenants hold when many ask at once, over both protocols, and only for those whose limits they are."""

import concurrent.futures
import threading
import time

import grpc
import pytest

from conftest import FLAGS, prompt_of, wait_until
from test_keys import http, make_key, shows

CALLERS = 32
PER_MINUTE = 12
AT_ONCE = 2


@pytest.fixture(scope="module")
def tenants(start_server, tmp_path_factory):
    made = {"rate": make_key("--tenant", "rate", "--requests-per-minute", PER_MINUTE),
            "narrow": make_key("--tenant", "narrow", "--concurrent-requests", AT_ONCE),
            "free": make_key("--tenant", "free")}
    path = tmp_path_factory.mktemp("quotas") / "keys.jsonl"
    path.write_text("".join(f"{line}\n" for _, line in made.values()))
    server = start_server(*FLAGS, "--api-keys", path)
    server.keys = {name: key for name, (key, _) in made.items()}
    return server


def all_at_once(calls):
    """What each call returns; they begin together."""
    begin = threading.Barrier(len(calls))

    def run(call):
        begin.wait()
        return call()

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
        return [done.result() for done in [threads.submit(run, call) for call in calls]]


def over_grpc(call):
    """(whether it was answered, what was told)."""
    try:
        call()
        return True, ""
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
        return False, error.details()


def over_http(server, path, key, body=None):
    status, answer = http(server, path, key, body)
    assert status in (200, 429), answer
    if status == 200:
        return True, ""
    assert answer["error"]["code"] == "rate_limit_exceeded"
    return False, answer["error"]["message"]


def test_requests_per_minute_are_counted_over_both_protocols(v1, tenants):
    key, free = tenants.keys["rate"], tenants.keys["free"]

    def calls(key):
        return [lambda: over_grpc(lambda: tenants.chunks.List(v1.ListChunksRequest(), **shows(key))),
                lambda: over_http(tenants, "/v1/models", key)]

    begin = time.monotonic()
    answers = all_at_once(calls(key) * (CALLERS // 2))
    # What the bucket lost meanwhile may be asked for again.
    most = PER_MINUTE + int((time.monotonic() - begin) / 60 * PER_MINUTE)
    assert PER_MINUTE <= sum(answered for answered, _ in answers) <= most
    assert all(f"limit of {PER_MINUTE} requests per minute" in told for answered, told in answers if not answered)
    assert all(answered for answered, _ in all_at_once(calls(free) * (CALLERS // 2)))


def test_requests_at_once_are_counted_over_both_protocols(v1, tenants):
    key, free = tenants.keys["narrow"], tenants.keys["free"]

    def generate(max_tokens, key):
        sampling = {"max_tokens": max_tokens, "ignore_eos": True}
        return tenants.inference.Generate(v1.GenerateRequest(prompt=prompt_of(v1), sampling=sampling), **shows(key))

    def calls(key):
        body = {"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 1}
        return [lambda: over_grpc(lambda: list(generate(1, key))),
                lambda: over_http(tenants, "/v1/chat/completions", key, body)]

    held = [generate(1500, key) for _ in range(AT_ONCE)]
    for stream in held:
        next(iter(stream))  # it has its place
    answers = all_at_once(calls(key) * (CALLERS // 2))
    assert all(stream.is_active() for stream in held), "they ended before they could be in the way"
    assert not any(answered for answered, _ in answers)
    assert all(f"limit of {AT_ONCE} requests at once" in told for _, told in answers)
    assert all(answered for answered, _ in all_at_once(calls(free)))
    for stream in held:
        stream.cancel()
    # Each protocol's calls get the places back, however often they are taken.
    for call in calls(key) * AT_ONCE:
        wait_until(lambda call=call: call()[0], "a place")


def test_what_each_tenant_uses_is_told_to_operators(v1, tenants):
    def of(tenant):
        metrics = tenants.metrics()
        assert 'kvblend_tenant_requests_total{tenant="nobody"}' not in metrics
        return [metrics[f'kvblend_tenant_{name}"{tenant}"{more}}}'] for name, more in (
            ("requests_total{tenant=", ""), ("computed_tokens_total{tenant=", ""),
            ("refused_requests_total{tenant=", ',limit="requests_per_minute"'),
            ("refused_requests_total{tenant=", ',limit="concurrent_requests"'))]

    with pytest.raises(grpc.RpcError):
        tenants.chunks.List(v1.ListChunksRequest(), **shows("kvb_nobody"))
    narrow, free = of("narrow"), of("free")
    report, _, _, finished = tenants.generate(v1.GenerateRequest(prompt=prompt_of(v1), sampling={"max_tokens": 3}),
                                              **shows(tenants.keys["free"]))
    computed = report.computed_tokens + report.recomputed_tokens + finished.usage.completion_tokens
    assert of("free") == [free[0] + 1, free[1] + computed, free[2], free[3]]
    assert of("narrow") == narrow, "others' work is not its own"
    answers = all_at_once([lambda: over_http(tenants, "/v1/models", tenants.keys["rate"])] * (2 * PER_MINUTE))
    refused = sum(not answered for answered, _ in answers)
    assert refused > 0
    requests, _, refused_for_requests, _ = of("rate")
    assert refused <= refused_for_requests < requests
