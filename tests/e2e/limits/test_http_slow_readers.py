"""HTTP against clients of tenants with limits that ask for much and read nothing: an answer counts as theirs until it is sent, or the
connection given up."""

import pytest

from conftest import wait_until
from http_client import connect, read_to_end, request_bytes, status_of
from support import tiny_model
from test_keys import http, make_key

CHAT = "/v1/chat/completions"
QUESTION = {"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 1}
# More than the sockets of both sides keep.
ANSWER_BYTES = 1 << 20
LONG = {**QUESTION, "max_tokens": 1500, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
ASKS = {"whole": (CHAT, LONG), "stream": (CHAT, {**LONG, "stream": True})}


@pytest.fixture(scope="module", name="start_with_keys")
def start_with_keys_fixture(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow_http")
    model = tiny_model.write(folder, context=4096)
    key, line = make_key("--tenant", "slow", "--concurrent-requests", "1")
    (folder / "keys.jsonl").write_text(line + "\n")

    def start(*flags):
        server = start_server("--chat-format", "chatml", "--no-self-check", "--chunk-store-bytes", "8MiB", "--api-keys",
                              folder / "keys.jsonl", *flags, model=model)
        server.key = key
        return server
    return start


def ask_and_read_nothing(server, path, body):
    """A connection whose answer the server has, and can't get rid of."""
    answered = server.log().count(" OK in ")
    connection = connect(server, receive_buffer=2048)
    connection.sendall(request_bytes(path, body, f"Authorization: Bearer {server.key}\r\nConnection: close\r\n"))
    wait_until(lambda: server.log().count(" OK in ") > answered, "the end of the work")
    return connection


def refused_for_places(server):
    """Whether a second call is, as long as the first one is there."""
    status, answer = http(server, CHAT, server.key, QUESTION)
    assert status == 200 or (status == 429 and "1 requests at once" in answer["error"]["message"]), answer
    return status == 429


@pytest.mark.parametrize("kind", ASKS)
def test_a_call_has_its_place_until_it_is_read(start_with_keys, kind):
    server = start_with_keys("--api-write-timeout", "1000")
    with ask_and_read_nothing(server, *ASKS[kind]):
        assert refused_for_places(server), "it is not sent"
    wait_until(lambda: not refused_for_places(server), "the end of the call")
    with ask_and_read_nothing(server, *ASKS[kind]) as connection:
        assert refused_for_places(server), "it is not sent"
        answer = read_to_end(connection)
        assert status_of(answer) == 200 and len(answer) > ANSWER_BYTES
        assert not refused_for_places(server), "who has read the last byte has the place again"
    assert server.stop() == 0


@pytest.mark.parametrize("kind", ASKS)
def test_what_nobody_reads_ends_when_its_time_is_over(start_with_keys, kind):
    server = start_with_keys("--api-write-timeout", "1")
    with ask_and_read_nothing(server, *ASKS[kind]) as connection:
        wait_until(lambda: not refused_for_places(server), "the end of the call")
        assert len(read_to_end(connection)) < ANSWER_BYTES, "it is cut off"
    assert server.stop() == 0
