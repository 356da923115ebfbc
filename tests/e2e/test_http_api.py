"""The HTTP API as its users see it: through OpenAI's own client."""

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request

import openai
import pytest
from google.protobuf import json_format

from conftest import CHUNKS, FLAGS, LEAD_IN, QUESTION, SYSTEM_TEXT, WAIT_SECONDS, wait_until
from http_client import client_of
from test_keys import make_key

MESSAGES = [{"role": "system", "content": SYSTEM_TEXT}, {"role": "user", "content": QUESTION}]
DOCUMENTS = [{"text": text} for text in CHUNKS]


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def ask(client, model, **arguments):
    extension = {"documents": DOCUMENTS, "kvblend": {"lead_in": LEAD_IN, **arguments.pop("kvblend", {})}}
    return client.chat.completions.create(**{"model": model, "messages": MESSAGES, "max_tokens": 8, "temperature": 0,
                                             "extra_body": extension, **arguments})


def call(server, path, body=None, method=None):
    """(status, JSON) of any path."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.api_port}{path}", method=method,
                                     data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_models(client, model):
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("gpt-4")
    assert error.value.code == "model_not_found"


def test_clients_tell_a_prompt_that_is_too_long(client, model):
    """As LangChain's, which shorten conversations then."""
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "word " * 10000}])
    assert error.value.code == "context_length_exceeded"


def test_info_is_what_grpc_tells(v1, server):
    server.wait_until_idle()
    told = json_format.ParseDict(call(server, "/v1/info")[1], v1.GetInfoResponse())
    expected = server.admin.GetInfo(v1.GetInfoRequest())
    assert 0 < told.uptime_seconds <= expected.uptime_seconds
    for info in (told, expected):
        info.ClearField("uptime_seconds")
    assert told == expected
    assert told.load.pages_total > 0 and not told.totals_left_out
    assert call(server, "/v1/info?namespace=x")[1]["error"]["message"].endswith("allowed: none")


def test_info_follows_the_load(server, client, model):
    def load():
        return call(server, "/v1/info")[1]["load"]

    server.wait_until_idle()
    before = load()
    assert [before[name] for name in ("requests_running", "sequences_decoding", "requests_waiting")] == [0, 0, 0]
    with ask(client, model, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        wait_until(lambda: load()["sequences_decoding"] == 1, "the answer among those being decoded")
        decoding = load()
        assert decoding["requests_running"] == 1 and decoding["pages_used"] > before["pages_used"]
        wait_until(lambda: int(load()["decoded_tokens"]) > int(decoding["decoded_tokens"]), "more tokens")
    server.wait_until_idle()
    assert load()["sequences_decoding"] == 0
    # It is asked for all the time: counted, but not in the log.
    assert server.metrics()['kvblend_http_calls_total{code="OK",method="GetInfo"}'] >= 4
    assert "HTTP/GetInfo" not in server.log()


def test_a_chat_is_what_grpc_answers(v1, server, client, model, prompt):
    _, text, _, finished = server.generate(v1.GenerateRequest(prompt=prompt, sampling={"max_tokens": 8}))
    answer = ask(client, model)
    assert answer.choices[0].message.content == text
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == finished.usage.prompt_tokens
    assert answer.usage.completion_tokens == 8
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")


def test_stored_chunks_are_told_as_cached(v1, server, client, model, stored):
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=MESSAGES, max_tokens=2, extra_body={"documents": DOCUMENTS, "kvblend": {
            "lead_in": LEAD_IN, "namespace": stored}})
    answer = raw.parse()
    report = answer.kvblend["prompt"]
    assert {chunk["source"] for chunk in report["chunks"]} == {"CHUNK_SOURCE_EXACT", "CHUNK_SOURCE_BLENDED"}
    cached = report["exact_tokens"] + report["reused_tokens"]
    assert 0 < cached == answer.usage.prompt_tokens_details.cached_tokens
    assert int(raw.headers["kvblend-reused-tokens"]) == report["reused_tokens"]
    # Nothing of it is there for another namespace.
    other = ask(client, model, kvblend={"namespace": stored + " of another", "blend": {"store_misses": False}})
    assert {chunk["source"] for chunk in other.kvblend["prompt"]["chunks"]} == {"CHUNK_SOURCE_MISS"}


def test_streams_say_the_same(client, model):
    whole = ask(client, model, logprobs=True, top_logprobs=2)
    chunks = list(ask(client, model, logprobs=True, top_logprobs=2, stream=True,
                      stream_options={"include_usage": True}))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert len(texts) > 5, "a stream comes token by token"
    tokens = [token for chunk in chunks if chunk.choices and chunk.choices[0].logprobs
              for token in chunk.choices[0].logprobs.content]
    assert [token.token for token in tokens] == [token.token for token in whole.choices[0].logprobs.content]
    assert all(len(token.top_logprobs) == 2 and token.top_logprobs[0].logprob <= 0 for token in tokens)
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert chunks[-2].choices[0].finish_reason == "length"
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_clients_stream_helper(client, model):
    with client.chat.completions.stream(model=model, messages=MESSAGES, stop=" ", temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "content.delta" in kinds and final.choices[0].message.content


def test_stop_and_seed(client, model, stored):
    # Of chunks that are all there, whose number does not change from one request to the next.
    extension = {"namespace": stored}
    text = ask(client, model, kvblend=dict(extension)).choices[0].message.content
    word = text.split()[2]
    stopped = ask(client, model, stop=word, kvblend=dict(extension))
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == text[:text.index(word)]
    sampled = [ask(client, model, temperature=1.5, seed=seed, max_tokens=12, kvblend=dict(extension))
               .choices[0].message.content for seed in (0, 0, 7, 8)]
    assert sampled[0] == sampled[1] and len(set(sampled)) > 1
    # What the server chose and told gives the same answer, as it was told and as a number.
    chosen = ask(client, model, temperature=1.5, max_tokens=12, kvblend=dict(extension))
    seed = chosen.kvblend["finished"]["seed"]
    assert 0 < int(seed) < 2**53
    for again in (seed, int(seed)):
        answer = ask(client, model, temperature=1.5, seed=again, max_tokens=12, kvblend=dict(extension))
        assert answer.choices[0].message.content == chosen.choices[0].message.content
    assert ask(client, model, seed=17000000000000000000, max_tokens=1).kvblend["finished"]["seed"] == "17000000000000000000"


def test_an_answer_of_which_nothing_is_reused_is_always_the_same(client, model):
    messages = [{"role": "user", "content": "Tell me about rivers. " * 30}, {"role": "assistant", "content": "They are long."},
                {"role": "user", "content": "Tell me a story."}]

    def told(**blend):
        answer = client.chat.completions.create(model=model, messages=messages, temperature=1, seed=7, max_tokens=12, logprobs=True,
                                                extra_body={"kvblend": {"blend": blend}})
        return answer.usage.prompt_tokens_details.cached_tokens, [token.logprob for token in answer.choices[0].logprobs.content]

    first = told(reuse="REUSE_NOTHING")
    assert first[0] == 0
    told()
    assert told()[0] > 0  # it is kept now
    assert told(reuse="REUSE_NOTHING") == first


def test_history_and_parts(client, model):
    messages = [MESSAGES[0], {"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello!"},
                {"role": "user", "content": [*({"type": "text", "text": text} for text in CHUNKS),
                                             {"type": "text", "text": QUESTION}]}]
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=2)
    assert len(answer.kvblend["prompt"]["chunks"]) == len(CHUNKS)
    plain = client.chat.completions.create(model=model, messages=[MESSAGES[0], messages[-1]], max_tokens=2)
    assert answer.usage.prompt_tokens > plain.usage.prompt_tokens + 4


def test_the_next_turn_goes_on_from_what_is_kept(client, model):
    documents = [{"type": "document", "source": {"type": "text", "data": text}} for text in CHUNKS]
    messages = [MESSAGES[0], {"role": "user", "content": [{"type": "text", "text": LEAD_IN}, *documents,
                                                          {"type": "text", "text": QUESTION}]}]
    for turn in range(3):
        raw = client.chat.completions.with_raw_response.create(model=model, messages=messages, max_tokens=8, temperature=0)
        answer = raw.parse()
        report = answer.kvblend["prompt"]
        kept = report.get("kept_tokens", 0)
        assert int(raw.headers["kvblend-kept-tokens"]) == kept
        if turn > 0:
            # All of the turn before; of what is new the answer's end, the question and the opening of the next answer.
            assert kept >= before.usage.prompt_tokens
            assert report["computed_tokens"] == report["prompt_tokens"] - kept < 60
            assert answer.usage.prompt_tokens_details.cached_tokens == kept
        before = answer
        messages += [{"role": "assistant", "content": answer.choices[0].message.content},
                     {"role": "user", "content": f"And what else? ({turn})"}]


def test_completions(client, model):
    answer = client.completions.create(model=model, prompt="The capital of Norway is", max_tokens=4, temperature=0,
                                       logprobs=1)
    choice = answer.choices[0]
    assert answer.object == "text_completion" and choice.text == "".join(choice.logprobs.tokens)
    assert choice.logprobs.text_offset[0] == 0 and len(choice.logprobs.top_logprobs[0]) == 1
    streamed = client.completions.create(model=model, prompt="The capital of Norway is", max_tokens=4, temperature=0,
                                         stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == choice.text


def test_offsets_do_not_depend_on_what_is_held_back(client, model):
    def offsets(**arguments):
        choice = client.completions.create(model=model, prompt="The capital of Norway is", max_tokens=16, temperature=0,
                                           logprobs=0, **arguments).choices[0]
        assert all(choice.text[offset:].startswith(token)
                   for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset))
        return choice.text, choice.logprobs.text_offset

    text, expected = offsets()
    # Whatever the answer says, it may become one of these.
    assert offsets(stop=[" zzzz", " the zzz", text[:20] + "zzz", text + "zzz"]) == (text, expected)


@pytest.mark.parametrize("field, arguments", [
    ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ("n", {"n": 2}),
    ("temperature", {"temperature": 11}),
    ("top_p", {"top_p": 0}),
    ("response_format.type", {"response_format": {"type": "json_object"}}),
    ("store", {"store": True}),
    ("service_tier", {"service_tier": "flex"}),
    ("prediction", {"prediction": {"type": "content", "content": "x"}}),
    ("messages[0].content[0].type", {"messages": [
        {"role": "assistant", "content": [{"type": "document", "source": {"type": "text", "data": "x"}}]}, *MESSAGES[1:]]}),
    ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:,x"}}]}]}),
    ("colour", {"extra_body": {"colour": "red"}}),
    ("kvblend.blend", {"extra_body": {"kvblend": {"blend": {"policy": "nothing"}}}}),
])
def test_what_cannot_be_done_is_refused_by_name(client, model, field, arguments):
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, model, **arguments)
    assert error.value.type == "invalid_request_error"
    assert error.value.param == field
    assert field.split(".")[-1].split("[")[0] in error.value.message


def test_prompts_that_are_too_long_are_refused(client, model):
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, model, messages=[{"role": "user", "content": "word " * 4000}])
    assert "2047" in error.value.message
    with pytest.raises(openai.APIStatusError) as error:
        ask(client, model, messages=[{"role": "user", "content": "word " * 300_000}])
    assert error.value.status_code == 413


def test_async_clients_at_once(server, model):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.api_port}/v1", api_key="none",
                                      max_retries=0) as client:
            answers = await asyncio.gather(*(client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": f"Count to {i}."}], max_tokens=3) for i in range(8)))
            return [answer.choices[0].message.content for answer in answers]
    assert all(asyncio.run(run()))


def test_async_streams_at_once(server, client, model):
    """Each says what the same request says without a stream; one that is left early ends on the server too."""
    def arguments(number, **more):
        return {"model": model, "messages": [{"role": "user", "content": f"Count to {number}."}], "temperature": 0, **more}

    async def read(async_client, number):
        stream = await async_client.chat.completions.create(**arguments(number, max_tokens=6), stream=True,
                                                            stream_options={"include_usage": True})
        return [chunk async for chunk in stream]

    async def run():
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.api_port}/v1", api_key="none",
                                      max_retries=0) as async_client:
            streams = await asyncio.gather(*(read(async_client, number) for number in range(6)))
            left = await async_client.chat.completions.create(**arguments(9, max_tokens=1500), stream=True,
                                                              extra_body={"ignore_eos": True})
            async with left:
                await anext(aiter(left))
            await asyncio.to_thread(server.wait_until_idle)
            return streams

    for number, chunks in enumerate(asyncio.run(run())):
        whole = client.chat.completions.create(**arguments(number, max_tokens=6))
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(texts) == whole.choices[0].message.content and len(texts) > 2
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_client_tries_again_when_the_server_says(start_server, tmp_path):
    """A tenant that may ask one thing at once: the second is refused, and answered once the first is out of its way."""
    key, line = make_key("--tenant", "one", "--concurrent-requests", "1")
    (tmp_path / "keys.jsonl").write_text(line + "\n")
    server = start_server(*FLAGS, "--api-keys", tmp_path / "keys.jsonl")
    client = client_of(server, api_key=key)
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=1500, stream=True,
                                            extra_body={"ignore_eos": True})
    next(iter(stream))
    answers = []

    def note(response):
        answers.append((response.status_code, response.headers.get("retry-after")))
        if response.status_code == 429:
            stream.close()
    patient = client_of(server, api_key=key, max_retries=openai.DEFAULT_MAX_RETRIES,
                        http_client=openai.DefaultHttpxClient(event_hooks={"response": [note]}))
    answer = patient.chat.completions.create(model=model, messages=MESSAGES, max_tokens=2)
    assert answer.usage.completion_tokens == 2
    *refusals, last = answers
    assert refusals and last[0] == 200
    assert all(status == 429 and int(retry_after) > 0 for status, retry_after in refusals)
    server.stop()


def test_leaving_cancels_the_request(server, client, model):
    server.wait_until_idle()
    with ask(client, model, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    server.wait_until_idle()
    with pytest.raises(openai.APITimeoutError):
        ask(client_of(server, timeout=0.05), model, max_tokens=1500, extra_body={"ignore_eos": True})
    server.wait_until_idle()
    assert server.metrics()['kvblend_http_calls_total{code="CANCELLED",method="ChatCompletions"}'] >= 1
    assert "ChatCompletions CANCELLED" in server.log()


def test_a_full_queue_is_429_with_a_hint(start_server):
    server = start_server("--max-queued-requests", "1", "--max-batch-size", "1", "--max-context-tokens", "512",
                          "--no-self-check")
    client = client_of(server)
    model = client.models.list().data[0].id

    stream = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=450, stream=True,
                                            extra_body={"ignore_eos": True})
    next(iter(stream))

    async def crowd():
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.api_port}/v1", api_key="none", max_retries=0,
                                      timeout=60) as crowd_client:
            return await asyncio.gather(*(crowd_client.chat.completions.create(
                model=model, messages=MESSAGES, max_tokens=2) for _ in range(12)), return_exceptions=True)
    errors = [answer for answer in asyncio.run(crowd()) if isinstance(answer, openai.RateLimitError)]
    stream.close()
    assert errors
    assert errors[0].response.headers["retry-after"] == "1" and errors[0].code == "rate_limit_exceeded"


def test_chunks_over_http_are_those_of_grpc(v1, server, client, model):
    namespace = "http chunks"
    body = {"namespace": namespace, "system_text": SYSTEM_TEXT, "lead_in": LEAD_IN, "chunks": CHUNKS, "label": "l"}
    status, put = call(server, "/v1/chunks", body)
    assert status == 200
    keys = [chunk["key"] for chunk in put["chunks"]]
    assert keys == [progress.key for progress in server.put(namespace=namespace)]
    status, again = call(server, "/v1/chunks", body)
    assert all(chunk["already_present"] for chunk in again["chunks"])
    assert call(server, f"/v1/chunks/{keys[0]}?namespace=http%20chunks")[1]["label"] == "l"
    page = call(server, "/v1/chunks?namespace=http%20chunks&page_size=2")[1]
    rest = call(server, f"/v1/chunks?namespace=http%20chunks&page_token={page['next_page_token']}")[1]
    assert {chunk["key"] for chunk in page["chunks"] + rest["chunks"]} >= set(keys)
    assert call(server, "/v1/chunks/pin", {"namespace": namespace, "keys": keys[:1]})[1]["changed"] == "1"
    assert server.chunks.Stat(v1.StatChunksRequest(namespace=namespace, keys=keys[:1])).chunks[0].pinned
    assert call(server, f"/v1/chunks/{keys[0]}?namespace=http%20chunks", method="DELETE")[0] == 200
    assert call(server, f"/v1/chunks/{keys[0]}?namespace=http%20chunks")[0] == 404
    assert int(call(server, "/v1/chunks/delete", {"namespace": namespace, "all": True})[1]["deleted"]) >= 2
    assert call(server, "/v1/chunks", {"chunks": []})[0] == 400


def test_other_paths_are_not_found_in_openais_form(server, client, model):
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=model, input="x")
    assert call(server, "/v2/models")[1]["error"]["type"] == "invalid_request_error"
    assert call(server, "/v1/models", method="DELETE")[0] == 405


def test_what_openapi_json_says_is_so(start_server, tmp_path):
    """A property test: requests made from the document, sound and unsound."""
    server = start_server("--max-context-tokens", "128", "--chunk-store-bytes", "64MiB", "--no-self-check")
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.api_port}/openapi.json",
         "--max-time", "20", "--max-examples", "10", "--no-color", "--warnings", "off", "--generation-database", "none",
         # Fields that are null count as absent here, and some fields go together, which a schema can't say.
         "--exclude-checks", "negative_data_rejection,positive_data_acceptance"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Tested: 15" in done.stdout


def test_draining_finishes_streams_and_refuses_the_rest(start_server):
    server = start_server("--max-context-tokens", "512", "--no-self-check")
    client = client_of(server)
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=300, stream=True,
                                            extra_body={"ignore_eos": True})
    next(iter(stream))
    server.process.terminate()
    wait_until(lambda: server.http("/readyz")[0] == 503, "draining")
    with pytest.raises(openai.APIStatusError) as error:
        client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=2)
    assert error.value.status_code == 503
    chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert server.process.wait(WAIT_SECONDS) == 0
