"""What the HTTP clients make of answers that a server of ours seldom gives, from one that says what the test wants."""

import asyncio
import copy
import importlib.metadata
import json
import math
import pickle

import grpc
import pytest

import kvblend
from kvblend import errors, http_client, openai_form
from kvblend.client import put_request
from kvblend.event_stream import Lines
from kvblend.v1 import chunks_pb2, inference_pb2

from conftest import DONE, TEXT, wait_until


def url_of(canned):
    return f"http://127.0.0.1:{canned.server_address[1]}"


@pytest.fixture(name="generate", params=["blocking", "async"])
def generate_fixture(request, canned):
    """generate(status, body, headers): what the client makes of this answer."""
    url = url_of(canned)

    async def asynchronously():
        async with kvblend.AsyncHttpClient(url) as client:
            return await client.generate("Where?")

    def generate(status, body, headers=None):
        canned.answer = (status, headers or {}, body)
        if request.param == "async":
            return asyncio.run(asynchronously())
        with kvblend.HttpClient(url) as client:
            return client.generate("Where?")
    return generate


@pytest.fixture(name="generate_named", params=["blocking", "async"])
def generate_named_fixture(request, canned):
    """generate_named(model): the body that a client sends which was told this model."""
    url = url_of(canned)
    canned.answer = (200, {}, TEXT + DONE)

    async def asynchronously(model):
        async with kvblend.AsyncHttpClient(url, model=model) as client:
            await client.generate("Where?")

    def generate_named(model):
        if request.param == "async":
            asyncio.run(asynchronously(model))
        else:
            with kvblend.HttpClient(url, model=model) as client:
                client.generate("Where?")
        return canned.asked
    return generate_named


def put(canned, body):
    canned.answer = (200, {}, body)
    with kvblend.HttpClient(url_of(canned)) as client:
        return client.put(["A chunk."])


def event_of(**error):
    return f"data: {json.dumps({'error': error})}\n\n"


def test_a_stream_that_is_whole(generate, canned):
    assert generate(200, TEXT + DONE).text == "Skarn"
    assert len(put(canned, 'data: {"num_tokens": 3}\n\n' + DONE)) == 1


@pytest.mark.parametrize("body", ["", TEXT, TEXT + TEXT[:20], "<html>a proxy's page</html>"])
def test_a_stream_that_breaks_off_is_an_error(generate, canned, body):
    with pytest.raises(kvblend.Error) as caught:
        generate(200, body)
    assert caught.value.code == "UNAVAILABLE"
    with pytest.raises(kvblend.Error) as caught:
        put(canned, body.replace(TEXT, 'data: {"num_tokens": 3}\n\n'))
    assert caught.value.code == "UNAVAILABLE"


CODES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 405: "UNIMPLEMENTED",
         408: "DEADLINE_EXCEEDED", 409: "ABORTED", 411: "INVALID_ARGUMENT", 413: "RESOURCE_EXHAUSTED", 415: "INVALID_ARGUMENT",
         417: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 431: "RESOURCE_EXHAUSTED", 499: "CANCELLED", 500: "INTERNAL",
         501: "UNIMPLEMENTED", 502: "UNAVAILABLE", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}


@pytest.mark.parametrize("status, code", CODES.items())
def test_codes_of_statuses(generate, status, code):
    with pytest.raises(kvblend.Error) as caught:
        generate(status, json.dumps({"error": {"message": "why", "type": "server_error"}}), {"Retry-After": "3"})
    assert (caught.value.code, caught.value.message, caught.value.retry_after_seconds) == (code, "why", 3)


def test_when_to_come_back_is_taken_to_the_millisecond(generate):
    for headers, seconds in (({"Retry-After": "2", "retry-after-ms": "1250"}, 1.25), ({"retry-after-ms": "40"}, 0.04),
                             ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None), ({}, None)):
        with pytest.raises(kvblend.Error) as caught:
            generate(429, json.dumps({"error": {"message": "why"}}), headers)
        assert caught.value.retry_after_seconds == seconds


def test_the_likeliest_tokens_are_kept(generate):
    token = {"token": "S", "logprob": -0.5, "top_logprobs": [{"token": "S", "logprob": -0.5}, {"token": "T", "logprob": -1.5}]}
    chunk = {"choices": [{"delta": {"content": "S"}, "logprobs": {"content": [token]}}]}
    answer = generate(200, f"data: {json.dumps(chunk)}\n\n" + DONE)
    assert [entry.text for entry in answer.logprobs] == ["S"]
    assert [[(entry.text, entry.logprob) for entry in place.tokens] for place in answer.top_logprobs] == [[("S", -0.5), ("T", -1.5)]]


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost", "", "ftp://x", "http://", "http://[::1", "http://x:99999"])
@pytest.mark.parametrize("make", [kvblend.HttpClient, kvblend.AsyncHttpClient])
def test_a_url_that_is_none_is_refused(make, url):
    with pytest.raises(kvblend.Error) as caught:
        make(url)
    assert caught.value.code == "INVALID_ARGUMENT" and f"base_url is '{url}'" in caught.value.message


@pytest.mark.parametrize("make", [kvblend.HttpClient, kvblend.AsyncHttpClient])
def test_a_url_with_a_password_is_refused_and_not_told(make):
    """It would be sent in place of the key."""
    for url in ("http://user:secret@127.0.0.1:1", "https://secret@127.0.0.1:1", "ftp://:secret@127.0.0.1:1"):
        with pytest.raises(kvblend.Error, match="INVALID_ARGUMENT: base_url has a user or a password; allowed: ") as caught:
            make(url, api_key="key")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("make", [kvblend.HttpClient, kvblend.AsyncHttpClient])
def test_a_client_may_wait_without_end(canned, make):
    """As one over gRPC may."""
    canned.answer = (200, {}, TEXT + DONE)
    client = make(url_of(canned), timeout=None)
    answer = client.generate("Where?")
    assert (asyncio.run(answer) if asyncio.iscoroutine(answer) else answer).text == "Skarn"


MAKERS = {"http": kvblend.HttpClient, "async http": kvblend.AsyncHttpClient, "grpc": kvblend.GrpcClient,
          "async grpc": kvblend.AsyncGrpcClient}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_key_that_is_none_is_refused_and_not_told(make):
    async def refused(key):
        with pytest.raises(kvblend.Error) as caught:
            make(api_key=key)
        return str(caught.value)
    for key in ("SEC\nRET", "SEC\0RET", "SECR\u00c9T"):
        assert asyncio.run(refused(key)) == ("INVALID_ARGUMENT: api_key has a character that no key has; "
                                             "allowed: printable ones of ASCII")


@pytest.mark.parametrize("kind", ["http", "async http", "grpc", "async grpc"])
def test_a_closed_client_and_one_without_time(kind):
    """Whatever the library below makes of it."""
    make = {"http": lambda: kvblend.HttpClient("http://127.0.0.1:1"), "grpc": lambda: kvblend.GrpcClient("127.0.0.1:1"),
            "async http": lambda: kvblend.AsyncHttpClient("http://127.0.0.1:1"),
            "async grpc": lambda: kvblend.AsyncGrpcClient("127.0.0.1:1")}[kind]

    def codes_of(client, **fields):
        return [client.info(**fields), client.generate("Where?", **fields), client.stat([], **fields),
                client.split("A text.", **fields), client.put(["A chunk."], **fields), client.delete([], **fields)]

    async def code_of(answer):
        with pytest.raises(kvblend.Error) as caught:
            await answer
        return caught.value.code

    async def asynchronously():
        client = make()
        late = [await code_of(answer) for answer in codes_of(client, timeout=0)]
        await client.close()
        return late, [await code_of(answer) for answer in codes_of(client)]

    def blocking():
        class Codes:
            def __init__(self, client):
                self.client = client

            def __getattr__(self, name):
                def call(*arguments, **fields):
                    with pytest.raises(kvblend.Error) as caught:
                        getattr(self.client, name)(*arguments, **fields)
                    return caught.value.code
                return call
        client = make()
        late = codes_of(Codes(client), timeout=0)
        client.close()
        return late, codes_of(Codes(client))

    late, closed = asyncio.run(asynchronously()) if kind.startswith("async") else blocking()
    assert set(closed) == {"FAILED_PRECONDITION"}
    # gRPC may find out first that nobody is there.
    assert set(late) == {"DEADLINE_EXCEEDED"} or kind.endswith("grpc")


def test_a_client_whose_every_wait_is_over_at_once():
    with kvblend.HttpClient("http://127.0.0.1:1", timeout=0) as client, pytest.raises(kvblend.Error, match="DEADLINE_EXCEEDED"):
        client.models()


def test_a_delete_that_did_not_happen_is_no_success(canned):
    canned.answer = (200, {}, '{"deleted": "1", "failed": "2", "failed_keys": ["aa", "bb"], "failure": "redis: gone"}')
    said = "UNAVAILABLE: not removed everywhere, so that they may be found again: aa and 1 more: redis: gone"
    with kvblend.HttpClient(url_of(canned)) as client, pytest.raises(kvblend.Error, match=said):
        client.delete(["aa", "bb", "cc"])


def test_one_text_is_no_list_of_chunks():
    """Every character would be a chunk, or a key."""
    for chunks in ("abc", b"abc", kvblend.Document("abc")):
        with pytest.raises(TypeError, match=f"chunks is a {type(chunks).__name__}; allowed: a list of str or Document"):
            kvblend.make_request("Where?", chunks)
        with pytest.raises(TypeError, match="chunks is a"):
            put_request(chunks)
    with pytest.raises(TypeError, match="chunk_labels is a str; allowed: a list of str"):
        put_request(["a", "b"], chunk_labels="ab")
    with kvblend.HttpClient() as client:
        for call in (client.stat, client.pin, client.delete):
            with pytest.raises(TypeError, match="keys is a str; allowed: a list of str"):
                call("ab" * 32)


def test_the_version_is_the_packages():
    assert kvblend.__version__ == importlib.metadata.version("kvblend")


@pytest.mark.parametrize("kind, message, code", [
    ("invalid_request_error", "the request was cancelled by the client", "CANCELLED"),
    ("server_error", "the engine is shutting down, and the request was not done in time", "UNAVAILABLE"),
    ("invalid_request_error", "chunks[3] is too long", "INVALID_ARGUMENT"),
    ("authentication_error", "", "UNAUTHENTICATED"),
    ("permission_error", "", "PERMISSION_DENIED"),
    ("rate_limit_error", "", "RESOURCE_EXHAUSTED"),
    ("server_error", "the engine is shutting down and accepts no new requests", "UNAVAILABLE"),
    ("server_error", "the deadline passed 2s ago, while the request ran", "DEADLINE_EXCEEDED"),
    ("server_error", "the disk is full", "INTERNAL"),
    ("of another server", "", "INTERNAL"),
])
def test_codes_of_errors_in_a_stream(generate, kind, message, code):
    with pytest.raises(kvblend.Error) as caught:
        generate(200, TEXT + event_of(type=kind, message=message, param=None, code=None))
    assert (caught.value.code, caught.value.message) == (code, message)


def test_a_model_that_is_not_there(generate):
    with pytest.raises(kvblend.Error) as caught:
        generate(200, event_of(type="invalid_request_error", message="model is 'x'", code="model_not_found"))
    assert caught.value.code == "NOT_FOUND"


def test_what_options_become():
    def body_of(**sampling):
        return openai_form.body_of(kvblend.make_request("Where?", sampling=kvblend.SamplingOptions(**sampling)))
    assert body_of(attribution=True)["kvblend"] == {"attribution": True}
    assert "kvblend" not in body_of() and "seed" not in body_of()
    # Numbers of 64 bits, which have a sign over HTTP.
    assert [body_of(seed=seed)["seed"] for seed in (7, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)] == [
        7, (1 << 63) - 1, -(1 << 63), -1]


def test_every_field_of_a_request_can_be_given():
    """By make_request and put_request, whose words for enums are those of the HTTP API."""
    requests = {"namespace": "x", "blend": kvblend.BlendOptions(explain=True), "sampling": kvblend.SamplingOptions(seed=1),
                "priority": "low"}
    prompts = {"system_text": "x", "lead_in": "x", "chunks": ["x"], "history": [("user", "x")], "split": "passages"}
    puts = {"system_text": "x", "lead_in": "x", "namespace": "x", "label": "x", "pin": True, "chunk_labels": ["x"],
            "anchoring": "isolated", "priority": "high"}
    plain, put = kvblend.make_request("Where?"), put_request(["A chunk."])
    for message, values, given in ((inference_pb2.GenerateRequest, requests, "prompt"),
                                   (inference_pb2.Prompt, prompts, "question")):
        assert set(message.DESCRIPTOR.fields_by_name) == {*values, given}
    assert set(chunks_pb2.PutChunksRequest.DESCRIPTOR.fields_by_name) == {*puts, "chunks"}
    for name, value in (requests | prompts).items():
        request = kvblend.make_request("Where?", **{name: value})
        assert request != plain and openai_form.body_of(request) != openai_form.body_of(plain), name
    for name, value in puts.items():
        assert put_request(["A chunk."], **{name: value}) != put, name
    assert put_request([], priority=chunks_pb2.PRIORITY_HIGH) == put_request([], priority="high")
    with pytest.raises(ValueError, match="priority is 'highest'; allowed: normal, high, low"):
        kvblend.make_request("Where?", priority="highest")


def test_a_named_model_is_asked_for(generate_named):
    assert "model" not in generate_named("")
    assert generate_named("SmolLM2")["model"] == "SmolLM2"


def test_every_option_of_sampling_is_sent():
    """Each alone makes a difference to the body."""
    values = {"stop": ["x"], "logit_bias": {3: 1.0}, "attribution": True, "ignore_eos": True}
    plain = openai_form.body_of(kvblend.make_request("Where?"))
    for field in inference_pb2.SamplingOptions.DESCRIPTOR.fields:
        sampling = kvblend.SamplingOptions(**{field.name: values.get(field.name, 1)})
        assert openai_form.body_of(kvblend.make_request("Where?", sampling=sampling)) != plain, field.name


def test_an_error_is_copied_and_pickled_whole():
    """As pools of processes hand it on."""
    error = kvblend.Error("UNAVAILABLE", "why", 1.5)
    for other in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is kvblend.Error and str(other) == str(error)
        assert (other.code, other.message, other.retry_after_seconds) == ("UNAVAILABLE", "why", 1.5)


# What str.splitlines takes for the end of a line, and JSON may have in a string as it is.
SEPARATORS = "\u2028 \u2029 \x85 \x7f"


def test_a_text_may_have_any_character(generate, canned):
    body = json.dumps({"choices": [{"delta": {"content": SEPARATORS}}]}, ensure_ascii=False)
    assert generate(200, f"data: {body}\n\n{DONE}").text == SEPARATORS
    progress = json.dumps({"key": SEPARATORS}, ensure_ascii=False)
    assert put(canned, f"data: {progress}\n\n{DONE}")[0].key == SEPARATORS


def test_lines_wherever_the_pieces_begin():
    stream = f"data: {SEPARATORS}\r\ndata: 2\n\rdata: 3\r\r\nrest".encode()
    for size in range(1, len(stream) + 1):
        lines = Lines()
        found = [line for begin in range(0, len(stream), size) for line in lines.add(stream[begin:begin + size])]
        assert [*found, *lines.end()] == [f"data: {SEPARATORS}", "data: 2", "", "data: 3", "", "rest"], size
    assert lines.end() == []


@pytest.mark.parametrize("body", ['data: {"id": 1}', "data: []", "data: 3", 'data: {"choices": [{"delta": null}]}',
                                  'data: {"error": "busy"}', 'data: {"choices": null}', 'data: {"choices": [], "kvblend": {}}'])
def test_an_answer_of_another_kind_of_server_is_an_error(generate, body):
    with pytest.raises(kvblend.Error) as caught:
        generate(200, f"{body}\n\n{DONE}")
    assert caught.value.code == "INTERNAL"


@pytest.mark.parametrize("body", ['data: {"key": 1}', "data: []", "data: 3", 'data: {"error": "busy"}'])
def test_progress_of_another_kind_of_server_is_an_error(canned, body):
    with pytest.raises(kvblend.Error) as caught:
        put(canned, f"{body}\n\n{DONE}")
    assert caught.value.code == "INTERNAL"


@pytest.mark.parametrize("body", ["<html>a proxy's page</html>", "[3]", '{"data": [3], "chunks": 3, "model": 3}', ""])
def test_an_answer_of_another_kind_of_server_in_one_piece_is_an_error(canned, body):
    async def asynchronously():
        async with kvblend.AsyncHttpClient(url_of(canned)) as client:
            for call in (client.models, client.info, lambda: client.stat([])):
                with pytest.raises(kvblend.Error, match="INTERNAL: the answer is none of kvblend's HTTP API"):
                    await call()

    canned.answer = (200, {}, body)
    with kvblend.HttpClient(url_of(canned)) as client:
        for call in (client.models, client.info, lambda: client.stat([])):
            with pytest.raises(kvblend.Error, match="INTERNAL: the answer is none of kvblend's HTTP API"):
                call()
    asyncio.run(asynchronously())


@pytest.mark.parametrize("body", ['{"error": "busy"}', '{"error": {"message": null}}', "busy"])
def test_a_proxys_own_error_is_told_as_it_is(generate, body):
    with pytest.raises(kvblend.Error) as caught:
        generate(503, body)
    assert (caught.value.code, caught.value.message) == ("UNAVAILABLE", body)


@pytest.mark.parametrize("status, headers, said", [
    (502, {}, "UNAVAILABLE: the answer is 502 Bad Gateway, without a body"),
    (429, {}, "RESOURCE_EXHAUSTED: the answer is 429 Too Many Requests, without a body"),
    (599, {}, "INTERNAL: the answer is 599, without a body"),
    (301, {"Location": "https://elsewhere/v1"}, "INTERNAL: the answer is 301 Moved Permanently, to https://elsewhere/v1"),
    (308, {}, "INTERNAL: the answer is 308 Permanent Redirect, without a body")])
def test_an_answer_of_a_proxy_without_a_body_is_told_by_its_status(generate, status, headers, said):
    with pytest.raises(kvblend.Error) as caught:
        generate(status, "", headers)
    assert str(caught.value) == said


def test_a_redirect_is_told_by_its_location_and_not_by_its_page(generate):
    with pytest.raises(kvblend.Error) as caught:
        generate(302, "<html>Found</html>", {"Location": "https://elsewhere/login"})
    assert caught.value.message == "the answer is 302 Found, to https://elsewhere/login"


@pytest.mark.parametrize("sampling, said", [({"temperature": math.nan}, "temperature is nan"), ({"top_p": math.inf}, "top_p is inf"),
                                            ({"logit_bias": {5: -math.inf}}, r"logit_bias\[5\] is -inf")])
def test_a_number_that_json_has_not_is_refused_as_over_grpc(canned, sampling, said):
    canned.answer = (200, {}, TEXT + DONE)
    with kvblend.HttpClient(url_of(canned)) as client, pytest.raises(kvblend.Error, match=f"INVALID_ARGUMENT: {said}; allowed: "):
        client.generate("Where?", sampling=kvblend.SamplingOptions(**sampling))


class PairsForKeys:
    """The metadata of grpc.aio as it is from 1.76 to 1.78: a mapping whose keys() are pairs."""

    pairs = (("retry-after-ms", "1500"), ("other", "x"))

    def __iter__(self):
        return iter(self.pairs)

    def keys(self):
        return self.pairs

    def __getitem__(self, name):
        return dict(self.pairs)[name]


@pytest.mark.parametrize("metadata, seconds", [(PairsForKeys(), 1.5), (PairsForKeys.pairs, 1.5), ((), None), (None, None),
                                               ((("retry-after-ms", "soon"),), None)])
def test_when_to_come_back_is_found_in_every_form_of_metadata(metadata, seconds):
    class Failed(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.RESOURCE_EXHAUSTED

        def details(self):
            return "why"

        def trailing_metadata(self):
            return metadata
    error = errors.of_grpc(Failed())
    assert (error.code, error.message, error.retry_after_seconds) == ("RESOURCE_EXHAUSTED", "why", seconds)


@pytest.mark.parametrize("kind", ["blocking", "async"])
@pytest.mark.parametrize("call", ["generate", "info"])
def test_an_answer_that_comes_byte_by_byte_wins_no_time(dripping, kind, call):
    """Every wait is over in time, and the whole never is."""
    arguments = ["Where?"] if call == "generate" else []

    async def asynchronously():
        async with kvblend.AsyncHttpClient(url_of(dripping)) as client:
            await getattr(client, call)(*arguments, timeout=0.3)

    dripping.ended.clear()
    dripping.cut_off.clear()
    with pytest.raises(kvblend.Error, match="DEADLINE_EXCEEDED: the answer was not over within 0.3 s"):
        if kind == "async":
            asyncio.run(asynchronously())
        else:
            with kvblend.HttpClient(url_of(dripping)) as client:
                getattr(client, call)(*arguments, timeout=0.3)
    wait_until(lambda: dripping.ended.is_set() or dripping.cut_off.is_set(), "the end of the answer")
    assert dripping.cut_off.is_set(), "the client has waited for all of it"


@pytest.mark.parametrize("method", ["stream", "stream_events", "put_with_progress"])
def test_who_stops_reading_hears_no_complaint(dripping, caplog, method):
    """Neither when the client is closed behind it, nor when the event loop ends."""
    request = {"stream": "Where?", "stream_events": kvblend.make_request("Where?"), "put_with_progress": put_request(["A chunk."])}

    async def stop_reading(closed):
        client = kvblend.AsyncHttpClient(url_of(dripping))
        async for _ in getattr(client, method)(request[method]):
            break
        if closed:
            await client.close()

    for closed in (True, False):
        asyncio.run(stop_reading(closed))
    assert caplog.records == []


def test_a_cancellation_is_not_lost_where_the_next_piece_comes_at_that_moment():
    async def run():
        deadline = http_client._Deadline(60)  # pylint: disable=protected-access
        arrives = asyncio.Event()
        call = asyncio.create_task(deadline.within(arrives.wait()))
        await asyncio.sleep(0.01)
        arrives.set()
        await asyncio.sleep(0)  # the piece is there, and the call not yet told
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    asyncio.run(run())


def test_what_takes_too_long_is_given_up_and_ended():
    ended = []

    async def never():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def run():
        with pytest.raises(kvblend.Error, match="DEADLINE_EXCEEDED: the answer was not over within 0.05 s"):
            await http_client._Deadline(0.05).within(never())  # pylint: disable=protected-access
    asyncio.run(run())
    assert ended


def test_log_probabilities_keep_the_bytes_of_their_tokens():
    choice = {"delta": {"content": ""}, "logprobs": {"content": [
        {"token": "\ufffd", "logprob": -1.5, "bytes": [240, 159], "top_logprobs": []}]}}
    assert openai_form._delta(choice).logprobs[0].bytes == b"\xf0\x9f"  # pylint: disable=protected-access
