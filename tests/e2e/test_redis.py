"""Chunks that servers share through a Redis Cluster: hits across servers, damage, nodes that die under load."""

import os
import pathlib
import re
import signal
import threading
import urllib.error
import urllib.request

import pytest

from conftest import CHUNKS, FLAGS, prompt_of, wait_until
from support.redis_cluster import RedisCluster

PASSWORD = "only for tests"


@pytest.fixture
def redis(tmp_path):
    cluster = RedisCluster(tmp_path, PASSWORD)
    yield cluster
    cluster.stop()


@pytest.fixture
def start_sharing(start_server, redis, tmp_path):
    """Starts a server on the cluster. On a busy machine a sound node may well take longer than 50 ms."""
    password_file = tmp_path / "password"
    password_file.write_text(PASSWORD + "\n")

    def start(memory="256MiB", budget="10", *more):
        server = start_server(
            "--max-context-tokens", "2048", "--chunk-store-bytes", memory, "--no-self-check",
            "--chunk-redis", redis.addresses, "--chunk-redis-password-file", str(password_file),
            "--chunk-redis-budget", budget, *more)
        wait_until(lambda: server.metrics()["kvblend_redis_nodes_working"] == 3, "all nodes of Redis")
        return server

    return start


def put_and_wait(server, chunks=CHUNKS):
    entries = server.put(chunks)
    wait_until(lambda: server.metrics()["kvblend_store_queued_writes"] == 0, "writes to Redis")
    return entries


def test_what_one_server_computes_is_a_hit_on_the_other(v1, start_sharing, redis):
    one = start_sharing()
    entries = put_and_wait(one)
    assert not any(entry.durable for entry in entries)  # Redis may forget
    _, expected = one.ask()
    other = start_sharing()
    report, logprobs = other.ask()
    assert [chunk.tier for chunk in report.chunks] == [v1.TIER_REDIS] * len(CHUNKS)
    assert [chunk.source for chunk in report.chunks] == [
        v1.CHUNK_SOURCE_EXACT, v1.CHUNK_SOURCE_BLENDED, v1.CHUNK_SOURCE_BLENDED]
    assert logprobs == expected
    assert {chunk.tier for chunk in other.ask()[0].chunks} == {v1.TIER_HOST_MEMORY}
    metrics = other.metrics()
    assert metrics["kvblend_redis_hits_total"] >= len(CHUNKS)
    assert metrics["kvblend_redis_read_bytes_total"] > 0
    (tier,) = other.admin.GetInfo(v1.GetInfoRequest()).tiers
    assert (tier.tier, tier.stats["nodes"], tier.stats["nodes_working"]) == (v1.TIER_REDIS, 3, 3)
    assert all(node.call("DBSIZE") > 0 for node in redis.nodes)

    # What one deletes, a server that has it not in memory does not find.
    stat = start_sharing().chunks.Stat
    keys = [entry.key for entry in entries]
    assert [chunk.tier for chunk in stat(v1.StatChunksRequest(keys=keys)).chunks] == [v1.TIER_REDIS] * len(keys)
    assert one.chunks.Delete(v1.DeleteChunksRequest(keys=keys)).deleted == len(keys)
    assert list(stat(v1.StatChunksRequest(keys=keys)).missing_keys) == keys


def test_a_delete_while_redis_is_away_is_said_and_made_up_for(v1, start_sharing, redis):
    server = start_sharing()
    keys = [entry.key for entry in put_and_wait(server)]
    for node in redis.nodes:
        node.process.send_signal(signal.SIGSTOP)
    unknown = "ab" * 32
    removed = server.chunks.Delete(v1.DeleteChunksRequest(keys=[*keys, unknown]))
    assert (removed.deleted, list(removed.failed_keys), list(removed.missing_keys)) == (0, [*keys, unknown], [])
    assert removed.failure.startswith("redis: ")
    assert server.metrics()["kvblend_redis_pending_erasures"] == len(keys) + 1
    one = urllib.request.Request(f"http://127.0.0.1:{server.api_port}/v1/chunks/{keys[0]}", method="DELETE")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(one, timeout=120)
    assert refused.value.code == 503
    for node in redis.nodes:
        node.process.send_signal(signal.SIGCONT)
    wait_until(lambda: server.metrics()["kvblend_redis_pending_erasures"] == 0, "what was to be deleted")
    assert not [name for name in redis.keys() if any(key in name for key in keys)]
    assert server.chunks.Delete(v1.DeleteChunksRequest(keys=keys)).failed == 0


def test_a_split_does_not_call_stored_what_redis_has_lost(v1, start_sharing, redis, tmp_path):
    server = start_sharing("256MiB", "10", "--chunk-disk-path", str(tmp_path / "chunks"))
    text = " ".join(f"Sentence {number} of a document that is put into Redis." for number in range(60))
    split = v1.SplitDocumentRequest(text=text, chunk_tokens=64)

    def parts():
        return server.chunks.Split(split).chunks

    def put():
        list(server.chunks.Put(v1.PutChunksRequest(
            chunks=[text.encode()[part.begin_byte:part.end_byte].decode() for part in parts()])))
        wait_until(lambda: server.metrics()["kvblend_store_queued_writes"] == 0, "writes to Redis")

    put()
    assert all(part.stored for part in parts())
    lost = [part.key for part in parts()][:2]
    for key, node in redis.keys().items():
        if lost[0] in key or (lost[1] in key and key.endswith(":5:v")):
            node.call("DEL", key)
    assert [part.key for part in parts() if not part.stored] == lost
    computed = server.metrics()["kvblend_store_insertions_total"]
    put()
    assert all(part.stored for part in parts())
    assert server.metrics()["kvblend_store_insertions_total"] == computed


def test_behind_another_anchor_too(v1, start_sharing):
    put_and_wait(start_sharing())
    other = start_sharing()
    prompt = prompt_of(v1)
    prompt.system_text = "You are brief."
    report, _ = other.score(v1.ScoreRequest(prompt=prompt, blend=v1.BlendOptions(store_misses=False),
                                            continuation_text="In Skarn."))
    assert [chunk.source for chunk in report.chunks] == [v1.CHUNK_SOURCE_OTHER_ANCHOR] * len(CHUNKS)
    assert {chunk.tier for chunk in report.chunks} == {v1.TIER_REDIS}


@pytest.mark.parametrize("damage", ["flip", "cut", "evict"])
def test_damaged_values_are_misses(v1, start_sharing, redis, damage):
    one = start_sharing()
    put_and_wait(one)
    _, expected = one.ask(reuse=v1.REUSE_NOTHING)
    for key, node in redis.keys().items():
        if not key.endswith(":29:v"):  # the last layer: found when most has been computed
            continue
        value = bytearray(node.call("GET", key))
        if damage == "flip":
            value[len(value) // 2] ^= 0x10
        elif damage == "cut":
            del value[len(value) // 2:]
        if damage == "evict":
            node.call("DEL", key)
        else:
            node.call("SET", key, bytes(value))
    other = start_sharing()
    report, logprobs = other.ask()
    assert {chunk.source for chunk in report.chunks} == {v1.CHUNK_SOURCE_MISS}
    assert logprobs == expected
    def found():
        metrics = other.metrics()
        return metrics["kvblend_redis_damaged_total"] + metrics["kvblend_redis_incomplete_total"]
    assert wait_until(found, "damage found") == len(CHUNKS) + 1  # the anchor too
    wait_until(lambda: not any(key.endswith(":header") for key in redis.keys()), "removal")
    put_and_wait(other)
    assert {chunk.tier for chunk in start_sharing().ask()[0].chunks} == {v1.TIER_REDIS}


def test_a_node_that_dies_under_load_fails_no_request(v1, start_server, start_sharing, redis):
    plain = start_server(*FLAGS)
    chunks = [f"Passage {i}: the bridge of Aldmoor has {i + 2} arches, and its river no name.\n" for i in range(24)]
    put_and_wait(start_sharing(), chunks)

    def request(number):
        # With everything recomputed, the answer is that of a server without Redis, whatever was found.
        picked = [chunks[(number * 5 + i) % len(chunks)] for i in range(3)]
        return v1.GenerateRequest(prompt=prompt_of(v1, picked), blend=v1.BlendOptions(ratio=1, store_misses=False),
                                  sampling=v1.SamplingOptions(max_tokens=4, temperature=0))
    expected = {number: plain.generate(request(number))[1] for number in range(8)}
    # Next to no memory for chunks: nearly every request asks Redis.
    shared = start_sharing(memory="2MiB", budget="0.05")
    answers, errors = [], []
    stop = threading.Event()

    def load(first):
        number = first
        while not stop.is_set():
            try:
                answers.append((number % 8, shared.generate(request(number % 8))[1]))
            except Exception as error:  # whatever it is, it is not to happen
                errors.append(error)
                return
            number += 1

    def answer_more(count):
        seen = len(answers)
        wait_until(lambda: errors or len(answers) >= seen + count, f"{count} answers")

    workers = [threading.Thread(target=load, args=(first,)) for first in (0, 4)]
    for worker in workers:
        worker.start()
    try:
        answer_more(8)
        redis.nodes[1].kill()
        answer_more(16)
        wait_until(lambda: shared.metrics()["kvblend_redis_nodes_working"] < 3, "the breaker to open")
        for node in (redis.nodes[0], redis.nodes[2]):
            node.kill()
        answer_more(16)
        for node in redis.nodes:
            node.restart()
        redis.wait_until_ok()
        wait_until(lambda: shared.metrics()["kvblend_redis_nodes_working"] == 3, "the breakers to close")
        answer_more(8)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert not errors
    assert all(text == expected[number] for number, text in answers)
    # The cluster is back, and empty: it takes chunks again, and gives them.
    put_and_wait(start_sharing(), chunks)
    before = shared.metrics()["kvblend_redis_hits_total"]

    def hits():
        for number in range(8):
            shared.generate(request(number))
        return shared.metrics()["kvblend_redis_hits_total"] > before
    wait_until(hits, "hits again")
    assert shared.metrics()["kvblend_redis_breaker_opens_total"] >= 3


def test_a_redis_that_is_not_there_keeps_no_server_from_starting(v1, start_server):
    server = start_server("--max-context-tokens", "2048", "--no-self-check", "--chunk-redis", "127.0.0.1:1")
    server.put()
    assert {chunk.source for chunk in server.ask()[0].chunks} == {
        v1.CHUNK_SOURCE_EXACT, v1.CHUNK_SOURCE_BLENDED}
    metrics = server.metrics()
    assert (metrics["kvblend_redis_nodes"], metrics["kvblend_redis_nodes_working"]) == (1, 0)  # an alert compares them
    assert server.log().count("chunk store in Redis: the cluster does not answer") == 1
    assert os.path.exists(server.log_path)


def slot_of(node, key):
    return node.call("CLUSTER", "KEYSLOT", key)


def begin_to_move(redis, password):
    """Every key is at another node than the one that still owns its slot, as while slots are being moved."""
    ids = {node.port: node.call("CLUSTER", "MYID").decode() for node in redis.nodes}
    for key, source in redis.keys().items():
        target = next(node for node in redis.nodes if node is not source)
        slot = slot_of(source, key)
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target.port])
        source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 10000, "AUTH", password, "KEYS", key)


def test_the_user_of_the_guide_may_do_all_that_servers_do(v1, start_sharing, redis):
    guide = (pathlib.Path(__file__).parents[2] / "docs" / "operator-guide.md").read_text()
    (line,) = re.findall(r"^ {4}(ACL SETUSER kvblend .*)$", guide, re.MULTILINE)
    for node in redis.nodes:
        node.call(*(part.replace("PASSWORD", PASSWORD) for part in line.split(" ")))
    as_user = ("--chunk-redis-user", "kvblend")
    one = start_sharing("256MiB", "10", *as_user)
    entries = put_and_wait(one)
    _, expected = one.ask()
    begin_to_move(redis, PASSWORD)
    report, logprobs = start_sharing("256MiB", "10", *as_user).ask()
    assert [chunk.tier for chunk in report.chunks] == [v1.TIER_REDIS] * len(CHUNKS)
    assert logprobs == expected
    keys = [entry.key for entry in entries]
    assert one.chunks.Delete(v1.DeleteChunksRequest(keys=keys)).deleted == len(keys)
    for node in redis.nodes:
        assert node.call("ACL", "LOG") == []
