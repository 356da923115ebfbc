"""gRPC against clients that ask for much and read nothing: the server keeps it for a while, not for ever, and counts it as theirs."""

import grpc
import pytest

from conftest import FLAGS, prompt_of, wait_until
from test_keys import make_key, shows

TOKENS = 300  # with the distribution of each: 59 MB


@pytest.fixture(scope="module", name="start_with_keys")
def start_with_keys_fixture(start_server, tmp_path_factory):
    key, line = make_key("--tenant", "slow", "--concurrent-requests", "1")
    path = tmp_path_factory.mktemp("slow") / "keys.jsonl"
    path.write_text(line + "\n")

    def start(*flags):
        server = start_server(*FLAGS, "--api-keys", path, *flags)
        server.shows = shows(key)
        return server
    return start


def ask_for_much(server):
    """A stream that is long, of which nothing is read."""
    v1 = server.v1
    request = v1.ScoreRequest(prompt=prompt_of(v1), return_distributions=True,
                              continuation_token_ids={"ids": [300 + i for i in range(TOKENS)]})
    return server.inference.Score(request, **server.shows)


def refused_for_places(server):
    """What a second call is told as long as the first one is there; None: it is not refused."""
    try:
        server.generate(server.v1.GenerateRequest(prompt=prompt_of(server.v1), sampling={"max_tokens": 1}), **server.shows)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "1 requests at once" in error.details()
        return error.details()
    return None


def scored(server):
    return server.metrics()["kvblend_scored_tokens_total"]


def test_a_call_has_its_place_until_it_is_read(start_with_keys):
    server = start_with_keys("--grpc-write-timeout", "1000")
    for ends, leave in enumerate((lambda stream: stream.cancel(), list), start=1):
        stream = ask_for_much(server)
        wait_until(lambda ends=ends: scored(server) == ends * TOKENS, "the end of the work")
        assert refused_for_places(server), "it is not sent"
        answer = leave(stream)
        wait_until(lambda: refused_for_places(server) is None, "the end of the call")
    assert len(answer) == TOKENS + 1
    assert server.stop() == 0


def test_what_nobody_reads_ends_when_its_time_is_over(start_with_keys):
    server = start_with_keys("--grpc-write-timeout", "1")
    stream = ask_for_much(server)
    wait_until(lambda: "Inference/Score" in server.log(), "the end of the work")
    wait_until(lambda: refused_for_places(server) is None, "the end of the call")
    with pytest.raises(grpc.RpcError) as error:
        list(stream)
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "reads too slowly: a part of the answer was not taken for 1s" in error.value.details()
    assert server.stop() == 0


def test_many_that_nobody_reads_have_a_bound_together(v1, start_server):
    server = start_server(*FLAGS, "--grpc-max-unsent-bytes", "130MB", "--grpc-write-timeout", "1000")
    server.shows = {}
    streams = [ask_for_much(server) for _ in range(3)]  # one alone may have 65 MB
    wait_until(lambda: server.metrics()["kvblend_time_to_first_token_seconds_count"] == 3, "all of them at work")
    server.wait_until_idle()
    answers, told = [], []
    for stream in streams:
        try:
            answers.append(len(list(stream)))
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            told.append(error.details())
    assert answers == [TOKENS + 1] * 2
    assert len(told) == 1 and "allowed: 130000000 for all together" in told[0]
    assert server.generate(v1.GenerateRequest(prompt=prompt_of(v1), sampling={"max_tokens": 2}))[1]
    assert server.stop() == 0
