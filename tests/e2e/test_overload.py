"""Clients that leave, deadlines, a full queue, and shutting down with work at hand."""

import concurrent.futures
import signal

import openai
import pytest

from conftest import refused, wait_until
from http_client import client_of

CALLS = 'kvblend_grpc_calls_total{{code="{}",method="Generate",service="Inference"}}'


def long_request(v1, prompt, max_tokens=1500):
    return v1.GenerateRequest(prompt=prompt, blend={"reuse": v1.REUSE_NOTHING},
                              sampling={"max_tokens": max_tokens, "ignore_eos": True})


def start_answer(v1, server, prompt, max_tokens=1500):
    """A call whose first event has come."""
    call = server.inference.Generate(long_request(v1, prompt, max_tokens))
    next(call)
    return call


@pytest.fixture(scope="module")
def small_server(start_server):
    return start_server("--max-context-tokens", "2048", "--max-queued-requests", "1", "--max-batch-size", "1",
                        "--no-self-check")


def test_cancelling_stops_the_work(v1, small_server, prompt):
    before = small_server.metrics().get(CALLS.format("CANCELLED"), 0)
    call = start_answer(v1, small_server, prompt)
    call.cancel()
    small_server.wait_until_idle()
    wait_until(lambda: small_server.metrics().get(CALLS.format("CANCELLED"), 0) == before + 1, "the count")


def test_who_gives_up_in_the_queue_has_waited(v1, small_server, prompt):
    """A server that is jammed, and whose clients leave, is not to look idle."""
    running = start_answer(v1, small_server, prompt)
    names = ("kvblend_request_queue_time_seconds_count", "kvblend_request_queue_time_seconds_sum",
             "kvblend_time_to_first_token_seconds_count", 'kvblend_requests_without_first_token_total{code="CANCELLED"}',
             'kvblend_requests_without_first_token_total{code="DEADLINE_EXCEEDED"}')
    before = small_server.metrics()
    late = small_server.inference.Generate(long_request(v1, prompt), timeout=2)
    wait_until(lambda: small_server.metrics()["kvblend_num_requests_waiting"] == 1, "a waiting request")
    with refused("DEADLINE_EXCEEDED"):
        list(late)
    wait_until(lambda: small_server.metrics()["kvblend_num_requests_waiting"] == 0, "nobody waiting")
    with client_of(small_server) as client:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(max_retries=0).chat.completions.create(
                model="", messages=[{"role": "user", "content": "Why?"}], max_tokens=1500, timeout=0.5)
    wait_until(lambda: small_server.metrics()[names[3]] == before[names[3]] + 1, "the one that went")
    after = small_server.metrics()
    assert [after[name] - before[name] for name in names if not name.endswith("_sum")] == [2, 0, 1, 1]
    assert after[names[1]] - before[names[1]] > 1, "most of two seconds"
    running.cancel()
    small_server.wait_until_idle()


def test_the_deadline_stops_the_work(v1, small_server, prompt):
    with refused("DEADLINE_EXCEEDED"):
        list(small_server.inference.Generate(long_request(v1, prompt), timeout=1))
    small_server.wait_until_idle()


def test_a_full_queue_says_when_to_come_back(v1, small_server, prompt):
    running = start_answer(v1, small_server, prompt)
    waiting = small_server.inference.Generate(long_request(v1, prompt))
    wait_until(lambda: small_server.metrics()["kvblend_num_requests_waiting"] == 1, "a waiting request")
    with refused("RESOURCE_EXHAUSTED") as error:
        list(small_server.inference.Generate(long_request(v1, prompt)))
    hints = [value for key, value in error.value.trailing_metadata() if key == "retry-after-ms"]
    assert len(hints) == 1 and int(hints[0]) > 0
    details = dict(error.value.trailing_metadata())["grpc-status-details-bin"]
    assert b"type.googleapis.com/google.rpc.RetryInfo" in details
    metrics = small_server.metrics()
    assert metrics["kvblend_num_tokens_waiting"] > 50 and metrics["kvblend_predicted_wait_seconds"] > 0
    assert metrics["kvblend_num_requests_running"] == metrics["kvblend_num_sequences_decoding"] == 1
    waiting.cancel()
    running.cancel()
    small_server.wait_until_idle()
    small_server.generate(long_request(v1, prompt, max_tokens=1))


def test_one_token_and_chunk_puts_need_no_room_in_the_batch(v1, start_server, prompt):
    server = start_server("--max-context-tokens", "2048", "--max-batch-size", "1", "--no-self-check")
    running = start_answer(v1, server, prompt)
    server.generate(long_request(v1, prompt, max_tokens=1))
    waiting = server.inference.Generate(long_request(v1, prompt))
    wait_until(lambda: server.metrics()["kvblend_num_requests_waiting"] == 1, "a waiting request")
    list(server.chunks.Put(v1.PutChunksRequest(chunks=["Lisbon is the capital of Portugal."])))
    metrics = server.metrics()
    assert metrics["kvblend_num_sequences_decoding"] == metrics["kvblend_num_requests_waiting"] == 1
    waiting.cancel()
    running.cancel()
    server.wait_until_idle()


def test_answers_of_one_namespace_that_fill_the_batch_do_not_keep_others_out(v1, start_server, prompt):
    server = start_server("--max-context-tokens", "2048", "--max-batch-size", "2", "--no-self-check")

    def request(namespace, max_tokens):
        request = long_request(v1, prompt, max_tokens)
        request.namespace = namespace
        return request

    alone = [event.text.text for event in server.inference.Generate(request("one", 8))]
    many = [server.inference.Generate(request("many", 1500)) for _ in range(3)]
    wait_until(lambda: server.metrics()["kvblend_num_sequences_decoding"] == 2, "a full batch")
    assert [event.text.text for event in server.inference.Generate(request("one", 8))] == alone
    # The third still waits, so neither of the first two had ended. What was answered is counted until the end of its step.
    assert server.metrics()["kvblend_num_requests_waiting"] == 1
    wait_until(lambda: server.metrics()["kvblend_num_sequences_decoding"] == 2, "the two that fill the batch")
    for call in many:
        call.cancel()
    server.wait_until_idle()


def test_sigterm_finishes_what_was_accepted(v1, start_server, prompt):
    server = start_server("--max-context-tokens", "2048", "--max-batch-size", "1", "--no-self-check")
    running = start_answer(v1, server, prompt, max_tokens=800)
    queued = server.inference.Generate(long_request(v1, prompt, max_tokens=3))
    wait_until(lambda: server.metrics()["kvblend_num_requests_waiting"] == 1, "a waiting request")
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.http("/readyz")[0] == 503, "readiness to end")
    assert "shutting down" in server.http("/readyz")[1]
    assert server.http("/healthz")[0] == 200
    with refused("UNAVAILABLE"):
        list(server.inference.Generate(long_request(v1, prompt, max_tokens=1)))
    assert list(running)[-1].finished.usage.completion_tokens == 800
    assert list(queued)[-1].finished.usage.completion_tokens == 3
    assert server.process.wait(60) == 0
    assert "stopped" in server.log()


def test_what_does_not_finish_in_time_may_be_asked_elsewhere(v1, start_server, prompt):
    """UNAVAILABLE, and 503 over HTTP, which clients and proxies try again, as they do not with what they have cancelled."""
    server = start_server("--max-context-tokens", "2048", "--drain-timeout", "0.2", "--max-batch-size", "1", "--no-self-check")
    running = start_answer(v1, server, prompt)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        queued = pool.submit(client_of(server).chat.completions.create, model="",
                             messages=[{"role": "user", "content": "Where?"}])
        wait_until(lambda: server.metrics()["kvblend_num_requests_waiting"] == 1, "a waiting request")
        server.process.send_signal(signal.SIGINT)
        with refused("UNAVAILABLE", "the engine is shutting down"):
            list(running)
        with pytest.raises(openai.InternalServerError, match="the engine is shutting down") as error:
            queued.result()
    assert error.value.status_code == 503
    assert server.process.wait(60) == 0
    assert "the drain deadline passed with 1 jobs queued, given up now, and 0 running; answers cut short: 1" in server.log()


@pytest.fixture
def hang_up():
    """Sets what a process that is started does with SIGHUP unless it says otherwise: whoever runs the tests may ignore it."""
    before = signal.getsignal(signal.SIGHUP)
    yield lambda action: signal.signal(signal.SIGHUP, action)
    signal.signal(signal.SIGHUP, before)


def test_a_hang_up_drains_too(start_server, hang_up):
    hang_up(signal.SIG_DFL)
    server = start_server("--max-context-tokens", "256", "--no-self-check")
    server.process.send_signal(signal.SIGHUP)
    assert server.process.wait(60) == 0
    assert "stopping: finishing accepted requests" in server.log()


def test_a_hang_up_that_nohup_ignores_stays_ignored(start_server, hang_up):
    hang_up(signal.SIG_IGN)
    server = start_server("--max-context-tokens", "256", "--no-self-check")
    server.process.send_signal(signal.SIGHUP)
    assert server.http("/readyz")[0] == 200
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


def test_a_second_signal_ends_it_at_once(v1, start_server, prompt):
    server = start_server("--max-context-tokens", "2048", "--drain-timeout", "3600", "--no-self-check")
    running = start_answer(v1, server, prompt)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.http("/readyz")[0] == 503, "readiness to end")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 128 + signal.SIGTERM
