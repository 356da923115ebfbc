"""Whatever a client sends gets an answer that names field, value and what is allowed; nothing crashes, and nothing is overlooked."""

import inspect

import cohere
import openai
import pytest

from conftest import ROOT, refused
from test_keys import http

NAN, INFINITY = float("nan"), float("inf")

# Changes to a good GenerateRequest, and what the refusal must name.
BAD_GENERATE = {
    "no prompt": (lambda r: r.ClearField("prompt"), ["prompt"]),
    "empty question": (lambda r: r.prompt.ClearField("question"), ["question"]),
    "too many chunks": (lambda r: r.prompt.chunks.extend(["x"] * 60), ["chunks", "50"]),
    "too much text": (lambda r: r.prompt.chunks.append("word " * 20000), ["65536"]),
    "too many tokens": (lambda r: r.prompt.chunks.append("word " * 5000), ["tokens"]),
    "long namespace": (lambda r: setattr(r, "namespace", "n" * 129), ["namespace", "129", "128"]),
    "unknown policy": (lambda r: setattr(r.blend, "policy", 42), ["blend.policy", "42", "POLICY_HKVD (2)"]),
    "unknown reuse": (lambda r: setattr(r.blend, "reuse", -1), ["blend.reuse", "-1", "REUSE_PREFIX (2)"]),
    "unknown anchoring": (lambda r: setattr(r.blend, "anchoring", 7), ["blend.anchoring", "7"]),
    "unknown deviation": (lambda r: setattr(r.blend, "hkvd_source", 7), ["blend.hkvd_source", "7"]),
    "unknown role": (lambda r: r.prompt.history.add(role=9, text="x"), ["prompt.history[0].role", "9"]),
    "NaN ratio": (lambda r: setattr(r.blend, "ratio", NAN), ["ratio", "nan"]),
    "negative ratio": (lambda r: setattr(r.blend, "ratio", -0.1), ["ratio", "-0.1"]),
    "ratio above 1": (lambda r: setattr(r.blend, "ratio", 1.5), ["ratio", "1.5"]),
    "bounds the wrong way round": (lambda r: (setattr(r.blend, "ratio_min", 0.5), setattr(r.blend, "ratio_max", 0.2)),
                                   ["ratio_min", "0.5", "0.2"]),
    "unknown ratio mode": (lambda r: setattr(r.blend, "ratio_mode", 7), ["ratio_mode", "7"]),
    "infinite ratio": (lambda r: setattr(r.blend, "ratio", INFINITY), ["ratio", "inf"]),
    "query layers": (lambda r: setattr(r.blend, "query_layers", 1000), ["query_layers", "1000"]),
    "hkvd layer": (lambda r: (setattr(r.blend, "policy", 2), setattr(r.blend, "hkvd_layer", 1000)),  # POLICY_HKVD
                   ["hkvd_layer", "1000"]),
    "negative link": (lambda r: setattr(r.blend, "link_tokens", -1), ["link_tokens", "-1"]),
    "NaN temperature": (lambda r: setattr(r.sampling, "temperature", NAN), ["temperature", "NaN"]),
    "hot": (lambda r: setattr(r.sampling, "temperature", 11), ["temperature", "11"]),
    "zero top_p": (lambda r: setattr(r.sampling, "top_p", 0), ["top_p", "0"]),
    "top_p above 1": (lambda r: setattr(r.sampling, "top_p", 1.01), ["top_p", "1.01"]),
    "negative top_k": (lambda r: setattr(r.sampling, "top_k", -5), ["top_k", "-5"]),
    "min_p above 1": (lambda r: setattr(r.sampling, "min_p", 2), ["min_p", "2"]),
    "zero penalty": (lambda r: setattr(r.sampling, "repetition_penalty", 0), ["repetition_penalty", "0"]),
    "zero max_tokens": (lambda r: setattr(r.sampling, "max_tokens", 0), ["max_tokens", "0"]),
    "many logprobs": (lambda r: setattr(r.sampling, "top_logprobs", 21), ["top_logprobs", "21", "20"]),
    "empty stop": (lambda r: r.sampling.stop.append(""), ["stop"]),
    "many stops": (lambda r: r.sampling.stop.extend("abcdefghijklmnopq"), ["stop", "17", "16"]),
}


def good(v1, prompt):
    return v1.GenerateRequest(prompt=prompt, blend={"reuse": v1.REUSE_NOTHING}, sampling={"max_tokens": 1})


@pytest.mark.parametrize("name", BAD_GENERATE)
def test_generate_names_what_is_wrong(v1, server, prompt, name):
    change, expected = BAD_GENERATE[name]
    request = good(v1, prompt)
    change(request)
    with refused("INVALID_ARGUMENT", *expected):
        list(server.inference.Generate(request))


@pytest.mark.parametrize("fields, expected", [
    ({}, "continuation"),
    ({"continuation_text": ""}, "continuation_text"),
    ({"continuation_token_ids": {"ids": []}}, "continuation_token_ids"),
    ({"continuation_token_ids": {"ids": [5, -1]}}, "continuation_token_ids[1] is -1"),
    ({"continuation_token_ids": {"ids": [10**9]}}, "continuation_token_ids[0] is 1000000000"),
    ({"continuation_text": "word " * 5000}, "tokens"),
])
def test_score_names_what_is_wrong(v1, server, prompt, fields, expected):
    with refused("INVALID_ARGUMENT", expected):
        list(server.inference.Score(v1.ScoreRequest(prompt=prompt, **fields)))


@pytest.mark.parametrize("fields, expected", [
    ({}, "chunks"),
    ({"chunks": ["x"] * 51}, "51"),
    ({"chunks": ["x"], "label": "l" * 257}, "label"),
    ({"chunks": ["x"], "anchoring": 5}, "anchoring is 5"),
    ({"chunks": ["x", "word " * 5000]}, "chunks[1]"),
])
def test_put_names_what_is_wrong(v1, server, fields, expected):
    with refused("INVALID_ARGUMENT", expected):
        list(server.chunks.Put(v1.PutChunksRequest(**fields)))


def test_store_calls_name_what_is_wrong(v1, server):
    calls = [
        (server.chunks.Stat, v1.StatChunksRequest(), "keys has 0 keys; allowed: 1 to 1000"),
        (server.chunks.Stat, v1.StatChunksRequest(keys=["a" * 64] * 1001), "keys has 1001 keys"),
        (server.chunks.Stat, v1.StatChunksRequest(keys=["a" * 64, "xyz"]), "keys[1]"),
        (server.chunks.Pin, v1.PinChunksRequest(keys=["A" * 63]), "keys[0]"),
        (server.chunks.Delete, v1.DeleteChunksRequest(), "keys has 0 keys"),
        (server.chunks.Delete, v1.DeleteChunksRequest(all=True, keys=["a" * 64]), "all"),
        (server.chunks.List, v1.ListChunksRequest(page_size=0), "page_size is 0; allowed: 1 to 1000"),
        (server.chunks.List, v1.ListChunksRequest(page_size=1001), "page_size is 1001"),
    ]
    long, keys = "n" * 129, ["a" * 64]
    calls += [(call, request, "namespace has 129 bytes; allowed: at most 128") for call, request in (
        (server.chunks.Stat, v1.StatChunksRequest(namespace=long, keys=keys)),
        (server.chunks.List, v1.ListChunksRequest(namespace=long)),
        (server.chunks.Delete, v1.DeleteChunksRequest(namespace=long, keys=keys)),
        (server.chunks.Delete, v1.DeleteChunksRequest(namespace=long, all=True)),
        (server.chunks.Pin, v1.PinChunksRequest(namespace=long, keys=keys)))]
    for call, request, expected in calls:
        with refused("INVALID_ARGUMENT", expected):
            call(request)


def test_what_a_client_writes_where_something_else_is_due_is_not_in_the_log(server):
    text = "heliotrope".ljust(64, "0")
    refusals = [(f"/v1/chunks?{text}=1", None, "is not known in a query here; allowed: namespace"),
                (f"/v1/chunks/{text}", None, "key is not hexadecimal at character 0"),
                ("/v1/chunks/pin", {"keys": [text]}, "keys[0]: key is not hexadecimal at character 0")]
    for path, body, expected in refusals:
        status, told = http(server, path, body=body)
        assert status == 400 and expected in told["error"]["message"], told
    assert "heliotrope" not in server.log()


def refusal_of(server, method, data):
    """What is answered to bytes as they are."""
    call = server.channel.unary_stream(method, request_serializer=lambda data: data,
                                       response_deserializer=lambda data: data)
    with refused("INVALID_ARGUMENT") as error:
        list(call(data))
    return error.value.details()


def test_text_that_is_not_utf8_is_named(v1, server, prompt):
    request = good(v1, prompt)
    request.prompt.chunks[1] = "before@@after"
    data = request.SerializeToString().replace(b"@@", b"\xc3\x28")
    assert refusal_of(server, "/kvblend.v1.Inference/Generate", data) == (
        "prompt.chunks[1] is not valid UTF-8 at byte 6 of 13; allowed: UTF-8 text")

    request.sampling.stop.append("##")
    data = request.SerializeToString().replace(b"##", b"\xff\xfe")
    assert "sampling.stop[0] is not valid UTF-8 at byte 0" in refusal_of(server, "/kvblend.v1.Inference/Generate", data)
    data = v1.PutChunksRequest(chunks=["@@"]).SerializeToString().replace(b"@@", b"\xed\xa0")
    assert "chunks[0] is not valid UTF-8" in refusal_of(server, "/kvblend.v1.Chunks/Put", data)
    data = v1.ListChunksRequest(page_token="@").SerializeToString().replace(b"@", b"\x80")
    assert "page_token is not valid UTF-8" in refusal_of(server, "/kvblend.v1.Chunks/List", data)


def test_bytes_that_are_no_message_are_refused(server):
    for method in ("Inference/Generate", "Inference/Score", "Chunks/Put", "Chunks/Stat", "Admin/GetInfo"):
        for data in (b"\xff\xff\xff", b"\x0a\x7f", b"\x00"):
            assert "not a well-formed kvblend.v1." in refusal_of(server, f"/kvblend.v1.{method}", data)


def test_large_messages_are_refused(v1, server, prompt):
    request = good(v1, prompt)
    request.prompt.chunks.append("x" * (2 << 20))
    with refused("RESOURCE_EXHAUSTED", str(1 << 20)):
        list(server.inference.Generate(request))


def test_special_tokens_in_text_are_text(v1, server, prompt):
    request = good(v1, prompt)
    plain, _, _, _ = server.generate(request)
    request.prompt.question += "<|im_end|><|im_start|>"
    marked, _, _, _ = server.generate(request)
    assert marked.prompt_tokens > plain.prompt_tokens + 4, "control tokens would have been two"


TOOL = {"type": "function", "function": {"name": "f"}}
# Every parameter of the official clients' calls is of one of these kinds.
# It is read: a value that is none is refused by name. What good ones do is tested in test_http_api.py and test_cohere.py.
READ = {
    "openai": {"messages": [], "model": "no such model", "frequency_penalty": "x", "logit_bias": [], "logprobs": "x", "max_tokens": 0,
               "max_completion_tokens": 0, "presence_penalty": "x", "seed": "x", "stop": 1, "stream": "x", "stream_options": 1,
               "temperature": "x", "top_logprobs": 21, "top_p": "x"},
    "cohere": {"messages": [], "model": "no such model", "documents": 1, "citation_options": {"mode": "x"}, "max_tokens": 0,
               "stop_sequences": "x", "temperature": "x", "seed": "x", "frequency_penalty": 2, "presence_penalty": 2, "k": 501, "p": 2,
               "logprobs": "x", "priority": 1000},
}
# It changes no answer wherever it is sent; docs/http-api.md says so.
CHANGES_NOTHING = {
    "openai": {"metadata": {"a": "b"}, "parallel_tool_calls": True, "prompt_cache_key": "k", "prompt_cache_options": {"mode": "explicit"},
               "prompt_cache_retention": "24h", "safety_identifier": "s", "user": "u"},
    "cohere": {},
}
# What it asks for is not to be had, and it is refused by name; the second value says what is so anyway, and is taken.
REFUSED = {
    "openai": {"audio": ({"voice": "v", "format": "mp3"}, None), "function_call": ("auto", "none"), "functions": ([{"name": "f"}], []),
               "modalities": (["text", "audio"], ["text"]), "moderation": ({"model": "m"}, None), "n": (2, 1),
               "prediction": ({"type": "content", "content": "x"}, None), "reasoning_effort": ("low", "none"),
               "response_format": ({"type": "json_object"}, {"type": "text"}), "service_tier": ("flex", "auto"), "store": (True, False),
               "tool_choice": ("required", "auto"), "tools": ([TOOL], []), "verbosity": ("low", "medium"),
               "web_search_options": ({"search_context_size": "low"}, None), "best_of": (2, 1), "echo": (True, False), "suffix": ("x", "")},
    "cohere": {"tools": ([TOOL], []), "strict_tools": (True, False), "response_format": ({"type": "json_object"}, {"type": "text"}),
               "safety_mode": ("CONTEXTUAL", "OFF"), "tool_choice": ("REQUIRED", "NONE"),
               "thinking": ({"type": "enabled"}, {"type": "disabled"})},
}
# What the client keeps for itself.
CLIENTS_OWN = {"self", "extra_headers", "extra_query", "extra_body", "timeout", "request_options"}
CHAT = {"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 2, "temperature": 0}
CALLS = {
    "chat.completions.create": ("openai", "/v1/chat/completions", CHAT, openai.resources.chat.completions.Completions.create),
    "completions.create": ("openai", "/v1/completions", {"prompt": "Hello?", "max_tokens": 2, "temperature": 0},
                           openai.resources.completions.Completions.create),
    "cohere's chat": ("cohere", "/v2/chat", CHAT, cohere.ClientV2.chat),
    "cohere's chat_stream": ("cohere", "/v2/chat", CHAT, cohere.ClientV2.chat_stream),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_parameter_of_the_official_clients_is_overlooked(server, call):
    api, path, body, method = CALLS[call]
    parameters = set(inspect.signature(method).parameters) - CLIENTS_OWN
    read = READ[api] | ({"prompt": 1, "logprobs": 21} if path == "/v1/completions" else {})
    assert parameters - set(read) - set(CHANGES_NOTHING[api]) - set(REFUSED[api]) == set(), "what becomes of these?"

    def answer(changes):
        status, told = http(server, path, body=body | changes)
        message = told.get("message") or told.get("error", {}).get("message", "")
        param = message if api == "cohere" else told.get("error", {}).get("param") or ""
        text = None if status != 200 else told["message"] if api == "cohere" else told["choices"][0]
        return status, param, message, text

    usual = answer({})[3]
    assert usual
    for name in parameters:
        if name in read:
            status, param, message, _ = answer({name: read[name]})
            assert status in (400, 404) and name in param + message, (name, status, message)
        elif name in CHANGES_NOTHING[api]:
            assert answer({name: CHANGES_NOTHING[api][name]})[3] == usual, name
            assert f"`{name}`" in (ROOT / "docs/http-api.md").read_text()
        else:
            unwanted, granted = REFUSED[api][name]
            status, param, message, _ = answer({name: unwanted})
            assert status == 400 and name in param and "allowed" in message, (name, status, message)
            assert answer({name: granted})[3] == usual, name


def test_the_server_still_answers(v1, server, prompt):
    _, text, _, _ = server.generate(good(v1, prompt))
    assert text
