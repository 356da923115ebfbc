"""A server learns a correction from what it serves, keeps it over restarts and kills, and is steered by calls."""
import os
import signal

import pytest

from conftest import CHUNKS, FLAGS, MODEL, refused, run, wait_until
from support.redis_cluster import RedisCluster

# Two missing chunks of each question are learned from, a quarter of them kept back.
QUESTIONS = 12


@pytest.fixture
def start(start_server, tmp_path):
    """Starts a server that may learn, with the test's folder as its disk."""
    if MODEL.with_name(MODEL.name + ".kvcorrection").exists():
        pytest.skip(f"beside {MODEL} lies a correction, so that servers do not begin without one")
    return lambda *flags, folder=tmp_path: start_server(*FLAGS, "--correction", "auto", "--chunk-disk-path", str(folder), *flags)


def passages(number):
    """Three that were never seen, of the same kind and about 250 tokens each: a map takes thousands of them."""
    facts = ("The bridge of Aldmoor {0} has {1} arches and was built by {2} masons from the north of the country.\n",
             "In the year {1} the people of Skarn {0} chose {2} of them to carry the old bell up the mountain.\n",
             "Ship {0} left the harbour of Westhaven with {1} barrels of salt and {2} sailors on a cold morning.\n")
    return ["".join(facts[(fact + line) % 3].format(10 * number + line, 1200 + 7 * number + 31 * line, 3 + line + fact)
                    for line in range(9)) for fact in range(3)]


def ask(server, number, **blend):
    v1 = server.v1
    prompt = v1.Prompt(system_text="You answer questions.", lead_in="Passages:\n", chunks=passages(number), question="Who?")
    return server.generate(v1.GenerateRequest(prompt=prompt, blend=v1.BlendOptions(**blend),
                                              sampling=v1.SamplingOptions(max_tokens=1)))[0]


def show(server):
    return server.admin.UpdateCorrection(server.v1.UpdateCorrectionRequest())


def teach(server, first=0):
    """Serves missing chunks, and returns the correction when all of them are learned from."""
    def seen():
        correction = show(server)
        return correction.fitted_chunks + correction.kept_back_chunks

    before = seen()
    for number in range(QUESTIONS):
        ask(server, first + number)
        wait_until(lambda: seen() == before + 2 * number + 2, "both chunks to be learned from")
    wait_until(lambda: not show(server).waiting_chunks, "the last fit")
    return show(server)


def test_learned_while_serving_kept_over_a_restart_and_steered(v1, start, tmp_path):
    server = start()
    assert show(server).learning == v1.LEARNING_STATE_ON and not show(server).version
    correction = teach(server)
    assert correction.fits >= correction.fits_applied >= 1 and correction.learned
    assert sum(correction.deviation_after) < sum(correction.deviation_before)
    assert ask(server, 0, policy=v1.POLICY_NONE).correction == correction.version
    info = server.admin.GetInfo(v1.GetInfoRequest())
    assert info.kv_format.correction == info.correction.version == correction.version
    metrics = server.metrics()
    assert metrics[f'kvblend_correction_info{{version="{correction.version}",origin="learned"}}'] == 1
    assert metrics["kvblend_correction_fitted_chunks"] == correction.fitted_chunks
    assert metrics["kvblend_correction_fits_applied_total"] == correction.fits_applied
    assert metrics['kvblend_correction_deviation_after{layer="1"}'] == pytest.approx(correction.deviation_after[1])

    address = f"127.0.0.1:{server.grpc_port}"
    shown = run("kvblend", "correction", "--server", address)
    assert shown.returncode == 0 and f"version {correction.version}, learned while serving" in shown.stdout
    assert run("kvblend", "correction", "freeze", "--server", address).returncode == 0
    stored = server.metrics()["kvblend_background_chunks_stored_total"]
    ask(server, 100)
    wait_until(lambda: server.metrics()["kvblend_background_chunks_stored_total"] == stored + 3, "missing chunks to be stored")
    assert show(server).learning == v1.LEARNING_STATE_FROZEN and show(server).tokens == correction.tokens
    assert server.stop() == 0
    assert (tmp_path / "learned.kvcorrection").exists() and (tmp_path / "learned.kvmoments").exists()
    checked = run("kvblend", "store", "check", tmp_path)
    assert checked.returncode == 0 and "learned" not in checked.stdout
    assert run("kvblend", "store", "gc", tmp_path, "--max-bytes", "1GB").returncode == 0

    second = start()
    recalled = show(second)
    assert recalled.version == correction.version and recalled.tokens == correction.tokens and recalled.learned
    assert ask(second, 0, policy=v1.POLICY_NONE).correction == correction.version
    reset = second.admin.UpdateCorrection(v1.UpdateCorrectionRequest(action=v1.CORRECTION_ACTION_RESET))
    assert not reset.version and not reset.tokens and not (tmp_path / "learned.kvcorrection").exists()
    assert ask(second, 0, policy=v1.POLICY_NONE).correction == ""
    with refused("INVALID_ARGUMENT", "action is 77"):
        second.admin.UpdateCorrection(v1.UpdateCorrectionRequest(action=77))


def test_a_killed_server_leaves_what_was_learned_or_what_was_before(start, tmp_path):
    server = start()
    correction = teach(server)
    assert correction.version
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    # As if it had died while it wrote.
    for name in ("learned.kvcorrection", "learned.kvmoments"):
        (tmp_path / f"{name}.part").write_bytes(b"half of it")
    second = start()
    recalled = show(second)
    assert recalled.version == correction.version
    assert 0 < recalled.tokens <= correction.tokens  # those since the last fit went with the server
    assert "damaged" not in "".join(line for line in second.log().splitlines() if "learned." in line)
    ask(second, 50)
    wait_until(lambda: show(second).tokens > recalled.tokens, "two more chunks to be learned from")
    assert second.stop() == 0
    assert not list(tmp_path.glob("*.part"))


def test_what_is_no_file_under_the_names_of_what_was_learned_is_named_and_not_read(start, tmp_path):
    for name in ("learned.kvmoments", "learned.kvcorrection"):
        os.mkfifo(tmp_path / name)
    server = start()  # without waiting for whoever writes into them
    for name in ("learned.kvmoments", "learned.kvcorrection"):
        assert f"{tmp_path / name} is no regular file" in server.log()
    ask(server, 0)
    wait_until(lambda: show(server).tokens, "chunks to be learned from")
    assert server.stop() == 0


def test_two_servers_on_one_redis_learn_together(v1, start, tmp_path):
    redis_folder = tmp_path / "redis"
    redis_folder.mkdir()
    redis = RedisCluster(redis_folder)
    try:
        password = tmp_path / "password"
        password.write_text("a password\n")

        def start_sharing(folder, *flags):
            server = start("--chunk-redis", redis.addresses, "--chunk-redis-password-file", str(password),
                           "--chunk-redis-budget", "10", "--share-correction-interval", "1", *flags, folder=tmp_path / folder)
            wait_until(lambda: server.metrics()["kvblend_redis_nodes_working"] == 3, "all nodes of Redis")
            return server

        def replicas():
            return {key for key in redis.keys() if key.startswith("kvb1:moments:") and key.endswith(":note")}

        first = start_sharing("first")
        taught = teach(first)
        assert taught.version and taught.shared
        second = start_sharing("second")
        wait_until(lambda: show(second).version, "a correction from what the first server has seen")
        learned = show(second)
        assert learned.learned and not learned.tokens and learned.replicas_merged == 1 and not learned.moments_refused
        assert sum(learned.deviation_after) < sum(learned.deviation_before)
        # Its chunks come from the first one through Redis, what corrects them is the second one's.
        assert ask(second, 0, policy=v1.POLICY_NONE).correction == learned.version
        metrics = second.metrics()
        assert metrics["kvblend_correction_shared"] == metrics["kvblend_correction_replicas_merged"] == 1
        shown = run("kvblend", "correction", "--server", f"127.0.0.1:{second.grpc_port}")
        assert "shared        1 other replicas found, 1 in the last fit" in shown.stdout

        # The other way round as well; and who is alone on purpose has and takes nothing.
        ask(second, 50)
        wait_until(lambda: show(second).fitted_chunks + show(second).kept_back_chunks == 2, "both chunks to be learned from")
        wait_until(lambda: show(first).replicas_found == 1, "the second server to be found")
        assert len(replicas()) == 2
        alone = start_sharing("alone", "--no-share-correction")
        ask(alone, 60)
        wait_until(lambda: show(alone).tokens, "chunks to be learned from")
        assert not show(alone).shared and not show(alone).replicas_found
        assert alone.stop() == 0 and len(replicas()) == 2

        first.admin.UpdateCorrection(v1.UpdateCorrectionRequest(action=v1.CORRECTION_ACTION_FREEZE))
        assert len(replicas()) == 1
        second.admin.UpdateCorrection(v1.UpdateCorrectionRequest(action=v1.CORRECTION_ACTION_RESET))
        assert not replicas()
        for node in redis.nodes:
            node.kill()
        seen = show(second).tokens
        ask(second, 70)  # served, and learned from
        wait_until(lambda: show(second).tokens > seen, "chunks to be learned from without Redis")
    finally:
        redis.stop()


def test_a_command_that_loads_the_model_leaves_no_moments_in_redis(tmp_path):
    redis = RedisCluster(tmp_path)
    try:
        password = tmp_path / "password"
        password.write_text("a password\n")
        chunks = [argument for passage in passages(0) for argument in ("--chunk", passage)]
        done = run("kvblend", "generate", "--model", MODEL, *FLAGS, "--correction", "auto", "--chunk-redis", redis.addresses,
                   "--chunk-redis-password-file", password, "--chunk-redis-budget", "10", "--system", "You answer questions.",
                   "--question", "Who?", "--max-tokens", "1", *chunks)
        assert done.returncode == 0, done.stderr
        keys = redis.keys()
        assert keys and not [key for key in keys if key.startswith("kvb1:moments:")]
    finally:
        redis.stop()


def test_switched_off_nothing_is_learned(v1, start_server):
    server = start_server(*FLAGS)  # the tests' environment says --correction none
    assert show(server).learning == v1.LEARNING_STATE_OFF
    with refused("FAILED_PRECONDITION", "correction is none"):
        server.admin.UpdateCorrection(v1.UpdateCorrectionRequest(action=v1.CORRECTION_ACTION_LEARN))
    assert len(server.put(CHUNKS)) == len(CHUNKS)
