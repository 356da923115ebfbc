"""The four clients against a running server. What one says the others have to say as well: gRPC's messages are the yardstick."""

import asyncio
import math
import subprocess
import sys

import pytest

import kvblend
from kvblend.integrations.conversation import Message, Settings
from kvblend.programs import path_of
from kvblend.v1 import admin_pb2, chunks_pb2, inference_pb2

from conftest import DOCUMENTS, ENVIRONMENT, QUESTION, SYSTEM_TEXT, Server, wait_until

SAMPLING = kvblend.SamplingOptions(max_tokens=16, top_logprobs=1)
# A prompt's first answer stores its system text, in 8 bits; later ones read it from there, and may come out otherwise.
COMPUTED = kvblend.BlendOptions(reuse=inference_pb2.REUSE_NOTHING)
PROMPT = {"system_text": SYSTEM_TEXT, "lead_in": "Passages:\n",
          "history": [("user", "Hello."), ("assistant", "Hello, what can I do?")], "sampling": SAMPLING}


def answer_to(client, request):
    answer = kvblend.Answer()
    for event in client.stream_events(request):
        answer.add(event)
    return answer


class Blocking:
    """An asynchronous client, used like the others."""

    def __init__(self, make):
        self.make = make

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def __getattr__(self, name):
        def call(*arguments, **fields):
            async def run():
                async with self.make() as client:
                    called = getattr(client, name)(*arguments, **fields)
                    if hasattr(called, "__aiter__"):
                        return [item async for item in called]
                    return await called
            return asyncio.run(run())
        return call


@pytest.fixture(name="client", params=["grpc", "http", "async grpc", "async http"])
def client_fixture(request, server):
    make = {"grpc": lambda: kvblend.GrpcClient(server.target), "http": lambda: kvblend.HttpClient(server.url),
            "async grpc": lambda: Blocking(lambda: kvblend.AsyncGrpcClient(server.target)),
            "async http": lambda: Blocking(lambda: kvblend.AsyncHttpClient(f"{server.url}/v1"))}
    with make[request.param]() as client:
        yield client


def test_answers_are_those_of_the_plain_stub(client, server, namespace):
    """Same text, same log-probabilities, same report, over a store in the same state."""
    blend = kvblend.BlendOptions(store_misses=False, ratio=0.5)
    client.put(DOCUMENTS, system_text=SYSTEM_TEXT, lead_in="Passages:\n", namespace=namespace)
    request = kvblend.make_request(QUESTION, DOCUMENTS[::-1], namespace=namespace, blend=blend, **PROMPT)
    with kvblend.GrpcClient(server.target) as plain:
        events = list(plain.stream_events(request))
    expected = "".join(event.text.text for event in events)
    answer = client.generate(QUESTION, DOCUMENTS[::-1], namespace=namespace, blend=blend, **PROMPT)
    assert answer.text == expected and expected
    assert [chunk.source for chunk in answer.report.chunks] == [chunk.source for chunk in events[0].prompt.chunks]
    assert inference_pb2.CHUNK_SOURCE_BLENDED in {chunk.source for chunk in answer.report.chunks}
    for name in ("prompt_tokens", "exact_tokens", "reused_tokens", "recomputed_tokens", "computed_tokens"):
        assert getattr(answer.report, name) == getattr(events[0].prompt, name), name
    assert answer.finished.usage == events[-1].finished.usage and answer.finished.reason == events[-1].finished.reason
    theirs = [token for event in events for token in event.text.logprobs]
    assert len(answer.top_logprobs) == len(answer.logprobs) and all(len(place.tokens) == 1 for place in answer.top_logprobs)
    assert [token.logprob for token in answer.logprobs] == pytest.approx([token.logprob for token in theirs], abs=1e-6)


def test_attribution_is_told(client, server, namespace):
    fields = {"namespace": namespace, "sampling": kvblend.SamplingOptions(max_tokens=8, attribution=True),
              "blend": kvblend.BlendOptions(store_misses=False)}
    with kvblend.GrpcClient(server.target) as plain:
        expected = plain.generate(QUESTION, DOCUMENTS, **fields).finished.attributions
    told = client.generate(QUESTION, DOCUMENTS, **fields).finished.attributions
    assert [token.end_byte for token in told] == [token.end_byte for token in expected] and expected
    assert any(token.chunks for token in told)


def test_seeds_of_all_bits_are_the_same_over_both(client, server):
    """Over HTTP they have a sign."""
    for seed in (7, 1 << 63, (1 << 64) - 3):
        fields = {"blend": COMPUTED, "sampling": kvblend.SamplingOptions(max_tokens=12, temperature=1.5, seed=seed)}
        with kvblend.GrpcClient(server.target) as plain:
            expected = plain.generate(QUESTION, **fields)
        answer = client.generate(QUESTION, **fields)
        assert (answer.text, answer.finished.seed) == (expected.text, seed)


def test_seed_0_of_a_setting_is_a_seed(server):
    """The one that OpenAI's clients mean by it; None leaves the choice to the server."""
    import httpx

    told = httpx.post(f"{server.url}/v1/chat/completions", timeout=120, json={
        "messages": [{"role": "user", "content": QUESTION}], "temperature": 1.5, "max_tokens": 12, "seed": 0,
        "kvblend": {"blend": {"reuse": "nothing"}}}).json()
    answers = {}
    for seed in (0, -5, None):
        settings = Settings(base_url=server.url, temperature=1.5, max_tokens=12, seed=seed, blend={"reuse": "REUSE_NOTHING"})
        request = settings.request([Message("user", [QUESTION])])
        with settings.client() as client:
            answers[seed] = [answer_to(client, request) for _ in range(2)]
    assert {answer.text for answer in answers[0]} == {told["choices"][0]["message"]["content"]}
    assert {answer.finished.seed for answer in answers[-5]} == {(1 << 64) - 5}
    assert len({answer.finished.seed for answer in answers[None]}) == 2


def test_a_key_may_have_been_read_with_the_end_of_its_line(tmp_path):
    key, line = subprocess.run([path_of("kvblend"), "key", "new", "--tenant", "one"], capture_output=True, text=True, check=True,
                               env=ENVIRONMENT).stdout.splitlines()
    (tmp_path / "keys").write_text(f"{line}\n")
    server = Server(tmp_path, "--api-keys", tmp_path / "keys")
    (tmp_path / "key").write_text(f"{key}\r\n")

    async def ask(make, address):
        async with make(address, api_key=(tmp_path / "key").read_text()) as client:
            return (await client.info()).version

    for blocking, asynchronous, address in ((kvblend.HttpClient, kvblend.AsyncHttpClient, server.url),
                                            (kvblend.GrpcClient, kvblend.AsyncGrpcClient, server.target)):
        with blocking(address, api_key=(tmp_path / "key").read_text()) as client:
            assert client.info().version == asyncio.run(ask(asynchronous, address))
    assert server.stop() == 0


def test_info_is_what_grpc_tells(client, server):
    wait_until(server.is_idle, "nothing left to do")
    told = client.info()
    with kvblend.GrpcClient(server.target) as plain:
        expected = plain.info()
    assert told.uptime_seconds <= expected.uptime_seconds
    for info in (told, expected):
        info.ClearField("uptime_seconds")
    assert told == expected and told.model.name and told.load.pages_total > 0


def test_streams_come_in_pieces(client):
    fields = {"blend": COMPUTED, "sampling": SAMPLING}
    pieces = list(client.stream(QUESTION, DOCUMENTS, **fields))
    assert len(pieces) > 1
    assert "".join(pieces) == client.generate(QUESTION, DOCUMENTS, **fields).text


def test_a_document_is_the_chunk_that_the_http_api_makes_of_it(server, namespace):
    """Stored through `documents`, found as a chunk's text."""
    import httpx

    stored = httpx.post(f"{server.url}/v1/chunks", timeout=120, json={
        "namespace": namespace, "documents": [{"title": document.title, "text": document.text} for document in DOCUMENTS]})
    with kvblend.GrpcClient(server.target) as client:
        put = client.put(DOCUMENTS, namespace=namespace)
    assert [progress.key for progress in put] == [chunk["key"] for chunk in stored.json()["chunks"]]
    assert all(progress.already_present for progress in put)


def test_a_second_turn_finds_the_first_where_it_was_kept(client, namespace):
    """The first turn's chunks come again as chunks of the history, the answer as the assistant's turn."""
    common = {"system_text": SYSTEM_TEXT, "namespace": namespace, "sampling": kvblend.SamplingOptions(max_tokens=8)}
    first = client.generate(QUESTION, DOCUMENTS, **common)
    assert first.report.kept_tokens == 0
    asked = kvblend.make_turn("user", QUESTION, DOCUMENTS)
    second = client.generate("And who built it?", history=[asked, ("assistant", first.text)], **common)
    assert second.report.kept_tokens >= first.report.prompt_tokens
    assert second.report.computed_tokens < first.report.prompt_tokens


def test_a_lead_in_of_the_history_needs_documents_over_http(server):
    """HTTP has no field for it: it is the text that stands before documents, and these end with a newline."""
    turn = kvblend.make_turn("user", QUESTION, ["A chunk without a newline at its end."], lead_in="Passages:\n")
    with kvblend.HttpClient(server.url) as client, pytest.raises(ValueError, match="lead-in"):
        client.generate("And then?", history=[turn, ("assistant", "Skarn.")], sampling=SAMPLING)


def test_looking_after_chunks(client, namespace):
    put = client.put(DOCUMENTS, namespace=namespace, label="mine")
    keys = [progress.key for progress in put]
    listed = {chunk.key: chunk for chunk in client.list_chunks(namespace)}
    assert {listed[key].label for key in keys} == {"mine"}
    assert [chunk.key for chunk in client.stat([*keys, "0" * 64], namespace)] == keys
    assert client.pin(keys[:1], namespace=namespace) == 1
    assert [chunk.pinned for chunk in client.stat(keys, namespace)] == [True, False]
    assert client.pin(keys[:1], False, namespace=namespace) == 1
    assert not any(chunk.pinned for chunk in client.stat(keys, namespace))
    (found, missing) = client.prefetch([DOCUMENTS[0], "not stored"], namespace=namespace)
    assert (found.key, found.tier, missing.tier) == (keys[0], chunks_pb2.TIER_HOST_MEMORY, chunks_pb2.TIER_UNSPECIFIED)
    assert client.delete(keys[:1], namespace) == 1
    assert [chunk.key for chunk in client.stat(keys, namespace)] == keys[1:]
    assert client.delete(None, namespace) >= 1
    assert not list(client.list_chunks(namespace))


def test_splitting_keeps_every_character(client):
    text = "Grün ist der Wald. Weiß ist der Schnee. " * 40
    pieces = client.split(text, chunk_tokens=64, overlap_tokens=0)
    assert len(pieces) > 1 and "".join(pieces) == text
    assert client.split(text, chunk_tokens=64, overlap_tokens=0, anchoring="isolated", timeout=300) == pieces
    with pytest.raises(ValueError, match="anchoring is 'alone'; allowed: anchored, isolated"):
        client.split(text, anchoring="alone")
    with pytest.raises(ValueError, match="goes_on is True; allowed: False"):
        client.split(text, goes_on=True)


def test_isolated_chunks_are_prefetched_by_that_word(client, namespace):
    (put,) = client.put(DOCUMENTS[:1], namespace=namespace, anchoring="isolated")
    (found,) = client.prefetch(DOCUMENTS[:1], namespace=namespace, system_text=SYSTEM_TEXT, anchoring="isolated", timeout=300)
    assert (found.key, found.tier) == (put.key, chunks_pb2.TIER_HOST_MEMORY)
    with pytest.raises(ValueError, match="anchoring is 'alone'; allowed: anchored, isolated"):
        client.prefetch(DOCUMENTS, anchoring="alone")


def test_a_call_may_have_a_timeout_of_its_own(client):
    """It is for the whole call, however often a piece of the answer comes."""
    with pytest.raises(kvblend.Error) as caught:
        client.generate(QUESTION, sampling=kvblend.SamplingOptions(max_tokens=1900, ignore_eos=True), timeout=0.5)
    assert caught.value.code == "DEADLINE_EXCEEDED"
    assert client.generate(QUESTION, sampling=SAMPLING, timeout=300).text


def test_a_timeout_without_end_is_none(client):
    for timeout in (1e300, math.inf):
        assert client.generate(QUESTION, sampling=SAMPLING, timeout=timeout).text
        assert client.split("A text.", timeout=timeout) == ["A text."]
    with pytest.raises(ValueError, match="timeout is nan; allowed: a number of seconds"):
        client.generate(QUESTION, timeout=math.nan)


def test_puts_have_labels_of_their_own_and_a_place_in_the_line(client, namespace):
    put = client.put(DOCUMENTS, namespace=namespace, chunk_labels=["first", "second"], anchoring="isolated", priority="low")
    found = {chunk.key: chunk for chunk in client.list_chunks(namespace)}
    assert [found[progress.key].label for progress in put] == ["first", "second"]
    assert client.put(DOCUMENTS, namespace=namespace, system_text=SYSTEM_TEXT, anchoring="isolated")[0].already_present


def test_what_a_server_learns_can_be_steered(server, tmp_path):
    """Over gRPC, blocking and not."""
    with kvblend.GrpcClient(server.target) as client, pytest.raises(kvblend.Error, match="FAILED_PRECONDITION"):
        client.correction("freeze")  # this one does not learn
    server = Server(tmp_path, "--correction", "auto")  # as servers are by default
    for make in (lambda: kvblend.GrpcClient(server.target), lambda: Blocking(lambda: kvblend.AsyncGrpcClient(server.target))):
        with make() as client:
            states = [client.correction(action).learning for action in ("freeze", "show", "learn")]
            assert states == [admin_pb2.LEARNING_STATE_FROZEN] * 2 + [admin_pb2.LEARNING_STATE_ON]
            with pytest.raises(ValueError, match="action is 'stop'; allowed: show, freeze, learn, reset"):
                client.correction("stop")
    assert server.stop() == 0


def test_a_pasted_prompt_is_cut_where_it_is_asked_for(client, namespace):
    pasted = "\n\n".join(["Answer from this.", *[f"{document.text} " * 3 for document in DOCUMENTS], QUESTION])
    fields = {"namespace": namespace, "sampling": SAMPLING, "blend": kvblend.BlendOptions(store_misses=False)}
    assert not client.generate(pasted, **fields).report.chunks
    assert len(client.generate(pasted, split="passages", **fields).report.chunks) >= len(DOCUMENTS)


def test_errors_have_code_and_message(client):
    with pytest.raises(kvblend.Error) as caught:
        client.generate(QUESTION, sampling=kvblend.SamplingOptions(top_p=7))
    assert caught.value.code == "INVALID_ARGUMENT" and "top_p is 7" in caught.value.message
    with pytest.raises(kvblend.Error) as caught:
        client.stat(["zz"])
    assert caught.value.code == "INVALID_ARGUMENT"
    with pytest.raises(kvblend.Error) as caught:
        client.generate("a" * (17 << 20))  # more than --max-message-bytes
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    with pytest.raises(ValueError, match="'robot'"):
        client.generate(QUESTION, history=[("robot", "Beep.")])


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_who_stops_reading_cancels(server, protocol):
    client = kvblend.GrpcClient(server.target) if protocol == "grpc" else kvblend.HttpClient(server.url)
    with client:
        sampling = kvblend.SamplingOptions(max_tokens=1500, ignore_eos=True)
        stream = client.stream(QUESTION, sampling=sampling)
        assert next(stream)
        stream.close()
        wait_until(server.is_idle, "the request goes away")


def test_an_answer_that_the_server_cuts_off_is_cancelled(tmp_path):
    """Over HTTP that is read from the server's words."""
    server = Server(tmp_path, "--drain-timeout", "0")
    codes = set()
    with kvblend.GrpcClient(server.target) as grpc, kvblend.HttpClient(server.url) as http:
        sampling = kvblend.SamplingOptions(max_tokens=1900, ignore_eos=True)
        streams = [client.stream(QUESTION, sampling=sampling) for client in (grpc, http)]
        for stream in streams:
            assert next(stream)
        server.process.terminate()
        for stream in streams:
            with pytest.raises(kvblend.Error) as caught:
                list(stream)
            codes.add(caught.value.code)
    server.stop()
    assert codes <= {"CANCELLED", "UNAVAILABLE"}  # UNAVAILABLE: the connection was gone before it could be said


def test_no_server_is_an_error_too():
    for client in (kvblend.GrpcClient("127.0.0.1:1"), kvblend.HttpClient("http://127.0.0.1:1")):
        with client, pytest.raises(kvblend.Error) as caught:
            client.generate(QUESTION)
        assert caught.value.code == "UNAVAILABLE"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 cannot tell whether a task was cancelled")
def test_closing_a_client_ends_its_calls_with_an_error_and_cancels_no_task(server):
    """As grpc has it, the task that waits for an answer would be cancelled, of which nobody hears."""
    sampling = kvblend.SamplingOptions(max_tokens=1500, ignore_eos=True)

    async def read(client, begun):
        async for _ in client.stream(QUESTION, sampling=sampling):
            begun.set()

    async def begin(client):
        begun = asyncio.Event()
        task = asyncio.create_task(read(client, begun))
        await begun.wait()
        return task

    async def closed():
        client = kvblend.AsyncGrpcClient(server.target)
        streaming = await begin(client)
        await client.close()
        with pytest.raises(kvblend.Error, match="CANCELLED: the client was closed"):
            await streaming

    async def cancelled():
        client = kvblend.AsyncGrpcClient(server.target)
        streaming = await begin(client)
        streaming.cancel()
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await streaming

    async def behind_a_group_that_failed():
        """In this task, which the group has cancelled and then let go on: Python 3.11 and 3.12 count that for
        ever."""
        async def fail():
            raise ValueError

        client = kvblend.AsyncGrpcClient(server.target)
        stream = client.stream(QUESTION, sampling=sampling)
        await anext(stream)
        with pytest.raises(BaseExceptionGroup):  # noqa: F821
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        await client.close()
        with pytest.raises(kvblend.Error, match="CANCELLED"):
            async for _ in stream:
                pass

    asyncio.run(closed())
    asyncio.run(cancelled())
    asyncio.run(behind_a_group_that_failed())
