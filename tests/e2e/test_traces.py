"""Which trace a call belongs to, over both protocols and in the log; timelines of requests, as ui.perfetto.dev opens them."""

import collections
import http.client
import json
import re
import shutil

import grpc
import pytest

from conftest import MODEL, run, wait_until
from support import tiny_model

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
KEPT, NOT_KEPT = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
CHAT = {"messages": [{"role": "user", "content": "What is it?"}], "max_tokens": 6, "ignore_eos": True,
        "documents": [{"text": "A passage. " * 12}, {"text": "Another. " * 12}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("traces") / "made" / "here"


@pytest.fixture(scope="module")
def traced(start_server, tmp_path_factory, folder):
    """Keeps the timelines that callers keep, three files of them at most, and logs in JSON."""
    model = tiny_model.write(tmp_path_factory.mktemp("tiny"))
    return start_server("--chat-format", "chatml", "--no-self-check", "--keep-conversations", "0", "--chunk-store-bytes", "8MiB", "--log-format", "json",
                        "--trace-dir", folder, "--trace-sample", "0", "--trace-max-files", "3", model=model)


def post(server, traceparents=(), path="/v1/chat/completions", body=None, headers=()):
    """(status, traceresponse, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.api_port, timeout=60)
    connection.putrequest("POST", path)
    data = json.dumps(CHAT if body is None else body).encode()
    for name, value in [("Content-Type", "application/json"), ("Content-Length", str(len(data))),
                        *(("traceparent", value) for value in traceparents), *headers]:
        connection.putheader(name, value)
    connection.endheaders(data)
    with connection.getresponse() as response:
        return response.status, response.headers["traceresponse"], response.read()


def log_lines(server):
    return [json.loads(line) for line in server.log().splitlines()]


def timelines(folder):
    return {path: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def check_timeline(timeline):
    """The rules of the format. Seconds and number of spans by name."""
    threads, by_thread = {}, collections.defaultdict(list)
    for event in timeline["traceEvents"]:
        assert event["pid"] == 1 and isinstance(event["tid"], int) and event["name"], event
        if event["ph"] == "M":
            threads[event["tid"]] = event["args"]["name"]
        else:
            assert event["ph"] == "X" and event["ts"] >= 0 and event["dur"] >= 0, event
            by_thread[event["tid"]].append(event)
    assert set(by_thread) <= set(threads)
    sums = collections.defaultdict(lambda: [0.0, 0])
    for events in by_thread.values():
        assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
        ends = []  # of the spans around the next one
        for event in events:
            end = event["ts"] + event["dur"]
            while ends and ends[-1] <= event["ts"] + 0.0005:  # nanoseconds, in binary fractions of microseconds
                ends.pop()
            assert not ends or end <= ends[-1] + 0.0005, event
            ends.append(end)
            sums[re.sub(r" \d+$", "", event["name"])][0] += event["dur"] / 1e6
            sums[re.sub(r" \d+$", "", event["name"])][1] += 1
    return sums


def test_a_callers_trace_goes_on_and_an_invalid_one_does_not(traced):
    status, response, _ = post(traced, [NOT_KEPT])
    version, trace, span, flags = response.split("-")
    assert (status, version, trace, flags) == (200, "00", TRACE, "00") and span != SPAN
    seen = set()
    for bad in ([], [f"00-{'0' * 32}-{SPAN}-01"], [f"ff-{TRACE}-{SPAN}-01"], [KEPT.upper()], [KEPT + "-x"], [KEPT, KEPT], ["x" * 300]):
        _, response, _ = post(traced, bad)
        match = re.fullmatch("00-([0-9a-f]{32})-[0-9a-f]{16}-00", response)
        assert match and match[1] != TRACE, (bad, response)
        seen.add(match[1])
    assert len(seen) == 7
    status, response, _ = post(traced, [NOT_KEPT], body={"messages": 1})
    assert status == 400 and TRACE in response, "errors tell it too"
    status, response, _ = post(traced, [NOT_KEPT], path="/v1/chunks/stat", body={"keys": ["ab" * 32]})
    assert status == 200 and TRACE in response


def test_grpc_tells_it_in_the_trailing_metadata(v1, traced):
    request = v1.GenerateRequest(prompt={"question": "What is it?"}, sampling={"max_tokens": 1})
    stream = traced.inference.Generate(request, metadata=[("traceparent", NOT_KEPT)])
    assert list(stream)
    assert dict(stream.trailing_metadata())["traceresponse"].startswith(f"00-{TRACE}-")
    for metadata in ([], [("traceparent", "00-zz")], [("traceparent", f"00-{TRACE}-{SPAN}-1")]):
        _, call = traced.admin.GetInfo.with_call(v1.GetInfoRequest(), metadata=metadata)
        response = dict(call.trailing_metadata())["traceresponse"]
        assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", response) and TRACE not in response
    with pytest.raises(grpc.RpcError) as error:
        list(traced.inference.Generate(v1.GenerateRequest(), metadata=[("traceparent", NOT_KEPT)]))
    assert TRACE in dict(error.value.trailing_metadata())["traceresponse"]


def test_the_structured_log_has_it(traced):
    _, response, _ = post(traced, body={**CHAT, "messages": 'no "list"\n'})
    trace = response.split("-")[1]
    line, = wait_until(lambda: [line for line in log_lines(traced) if line.get("trace_id") == trace], "the line")
    assert line["level"] == "warning" and line["code"] == "INVALID_ARGUMENT" and line["method"] == "ChatCompletions"
    assert "messages" in line["error"] and line["seconds"] >= 0 and line["time"].endswith("Z")
    assert any("serving" in line.get("message", "") for line in log_lines(traced))


def test_the_structured_log_names_requests_as_clients_know_them(v1, traced):
    def line_of(trace):
        return wait_until(lambda: [line for line in log_lines(traced) if line.get("trace_id") == trace], "the line")[0]

    _, response, body = post(traced, headers=[("X-Request-Id", "order-7")])
    line = line_of(response.split("-")[1])
    assert line["request_id"] == json.loads(body)["id"] and line["client_request_id"] == "order-7"
    _, response, _ = post(traced, path="/v1/chunks/stat", body={"keys": []}, headers=[("X-Request-Id", 'a "b", c')])
    line = line_of(response.split("-")[1])
    assert line["request_id"].startswith("req-") and "client_request_id" not in line
    _, call = traced.admin.GetInfo.with_call(v1.GetInfoRequest(), metadata=[("x-request-id", "order-8")])
    line = line_of(dict(call.trailing_metadata())["traceresponse"].split("-")[1])
    assert line["client_request_id"] == "order-8" and "request_id" not in line


def test_timelines_that_callers_keep(v1, traced, folder):
    post(traced, [NOT_KEPT])  # the passages are stored from here on
    traced.wait_until_idle()
    assert not timelines(folder)
    _, response, body = post(traced, [KEPT])
    assert response.endswith("-01")
    (path, timeline), = wait_until(lambda: timelines(folder), "the timeline").items()
    assert TRACE in path.name and timeline["otherData"]["trace_id"] == TRACE and timeline["otherData"]["code"] == "OK"
    assert timeline["otherData"]["span_id"] == response.split("-")[2]
    assert timeline["otherData"]["request_id"] == json.loads(body)["id"]
    sums = check_timeline(timeline)
    report = json.loads(body)["kvblend"]["prompt"]
    assert report["reused_tokens"] > 0
    assert sums["layer"][1] == 2 * tiny_model.LAYERS and sums["place stored KV"][1] >= tiny_model.LAYERS
    assert sums["decode step"][1] >= 1 and sums["write"][1] >= 7, "six tokens, and the end"
    for once in ("request", "queue", "prompt", "answer", "lookup", "query pass", "select", "pass"):
        assert sums[once][1] == 1, once
    # The newest files stay.
    traces = [f"{i:032x}" for i in range(1, 6)]
    for trace in traces:
        list(traced.inference.Generate(v1.GenerateRequest(prompt={"question": "What is it?"}, sampling={"max_tokens": 1}),
                                       metadata=[("traceparent", f"00-{trace}-{SPAN}-01")]))
        wait_until(lambda name=trace: list(folder.glob(f"*{name}*")), "the next one")
    assert [trace for trace in traces if list(folder.glob(f"*{trace}*"))] == traces[-3:]
    assert len(timelines(folder)) == 3


def test_a_folder_that_is_gone_is_made_anew(traced, folder):
    shutil.rmtree(folder)
    assert post(traced, [KEPT])[0] == 200
    wait_until(lambda: folder.is_dir() and timelines(folder), "the timeline")


def test_a_folder_that_cannot_be_written_to_harms_nobody(traced, folder):
    shutil.rmtree(folder)
    folder.write_text("a file in its place")
    for _ in range(3):
        assert post(traced, [KEPT])[0] == 200
    wait_until(lambda: "traces of requests are lost" in traced.log(), "the warning")
    assert traced.log().count("traces of requests are lost") == 1, "not one for each"
    folder.unlink()
    assert post(traced, [KEPT])[0] == 200
    wait_until(lambda: folder.is_dir() and timelines(folder), "the next one")


def test_the_command_line_writes_one(tmp_path):
    path = tmp_path / "timeline.json"
    generate = ("generate", "--question", "What is it?", "--max-tokens", "3", "--trace", path)
    result = run("kvblend", *generate, "--model", MODEL)
    assert result.returncode == 0, result.stderr
    assert check_timeline(json.loads(path.read_text()))["layer"][1] == 30  # SmolLM2's
    result = run("kvblend", *generate, "--server", "127.0.0.1:1")
    assert result.returncode == 2 and "--trace needs --model" in result.stderr, result
