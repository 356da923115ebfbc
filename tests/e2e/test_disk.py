"""Chunks on disk: restarts, damage, kills, and two servers on one folder."""

import os
import random
import signal
import threading
import time

import grpc
import pytest

from conftest import CHUNKS, FLAGS, LEAD_IN, MODEL, SYSTEM_TEXT, prompt_of, run, wait_until

KILLS = int(os.environ.get("KVBLEND_TEST_KILLS", "4"))  # more of them: a longer test of the same


@pytest.fixture
def start(start_server, tmp_path):
    """Starts a server with the test's folder as its disk."""
    return lambda *flags: start_server(*FLAGS, "--chunk-disk-path", str(tmp_path), *flags)


def entry_files(folder):
    return sorted(path for path in folder.rglob("*.kvb1") if "quarantine" not in path.parts)


def test_chunks_outlive_the_server(v1, start, tmp_path):
    first = start()
    entries = first.put(label="kept", pin=True)
    assert all(entry.durable and not entry.already_present for entry in entries)
    report, from_memory = first.ask()
    assert {chunk.tier for chunk in report.chunks} == {v1.TIER_HOST_MEMORY}
    assert first.stop() == 0

    second = start()
    info = second.chunks.Stat(v1.StatChunksRequest(keys=[entry.key for entry in entries]))
    assert [(chunk.key, chunk.tier, chunk.label, chunk.pinned) for chunk in info.chunks] == [
        (entry.key, v1.TIER_DISK, "kept", True) for entry in entries]
    report, from_disk = second.ask()
    assert {chunk.tier for chunk in report.chunks} == {v1.TIER_DISK}
    assert [chunk.source for chunk in report.chunks] == [
        v1.CHUNK_SOURCE_EXACT, v1.CHUNK_SOURCE_BLENDED, v1.CHUNK_SOURCE_BLENDED]
    assert 0 <= report.stall_seconds <= report.load_seconds
    assert from_disk == from_memory
    assert {chunk.tier for chunk in second.ask()[0].chunks} == {v1.TIER_HOST_MEMORY}
    assert all(entry.already_present and entry.durable for entry in second.put())
    metrics = second.metrics()
    assert metrics["kvblend_disk_entries"] == 4  # the anchor too
    assert metrics["kvblend_store_lower_hits_total"] == 4
    assert metrics["kvblend_disk_read_bytes_total"] > 0

    second.chunks.Delete(v1.DeleteChunksRequest(all=True))
    assert not entry_files(tmp_path)


def test_chunks_of_another_format_are_left_alone(v1, start):
    first = start("--chunk-format", "int8")
    first.put(label="left over", pin=True)
    assert first.stop() == 0
    second = start("--chunk-format", "f16")
    assert not second.chunks.List(v1.ListChunksRequest()).chunks
    metrics = second.metrics()
    assert (metrics["kvblend_disk_entries"], metrics["kvblend_disk_pinned_entries"]) == (0, 0)
    assert metrics["kvblend_disk_unusable_entries"] == 4
    assert metrics["kvblend_disk_unusable_bytes"] == metrics["kvblend_disk_bytes"] > 0
    assert second.stop() == 0
    again = start("--chunk-format", "int8")
    assert again.metrics()["kvblend_disk_pinned_entries"] == len(CHUNKS)


def test_chunks_larger_than_memory_say_so(v1, start, start_server, tmp_path):
    first = start()
    first.put()
    assert first.stop() == 0
    text = dict(system_text=SYSTEM_TEXT, lead_in=LEAD_IN)
    small = start_server("--max-context-tokens", "2048", "--chunk-store-bytes", "200KB", "--no-self-check",
                         "--chunk-disk-path", str(tmp_path))
    found = small.chunks.Prefetch(v1.PrefetchChunksRequest(chunks=CHUNKS, **text)).chunks
    assert all(chunk.tier == v1.TIER_UNSPECIFIED and "--chunk-store-bytes" in chunk.refusal for chunk in found)
    assert not small.chunks.List(v1.ListChunksRequest()).chunks
    with pytest.raises(grpc.RpcError) as refused:
        small.put()
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "--chunk-store-bytes" in refused.value.details()


def test_prefetched_chunks_are_in_memory(v1, start):
    first = start()
    first.put()
    first.stop()
    second = start()
    request = v1.PrefetchChunksRequest(system_text=SYSTEM_TEXT, lead_in=LEAD_IN, chunks=[*CHUNKS, "Never stored."])
    found = second.chunks.Prefetch(request).chunks
    assert [chunk.tier for chunk in found] == [v1.TIER_DISK] * len(CHUNKS) + [v1.TIER_UNSPECIFIED]
    assert all(chunk.num_tokens > 0 for chunk in found)
    metrics = second.metrics()
    assert metrics["kvblend_store_prefetched_total"] == len(CHUNKS) + 1  # the anchor too
    assert metrics["kvblend_store_lookups_total"] == 0
    layers = 30
    wait_until(lambda: second.metrics()["kvblend_disk_reads_total"] == layers * (len(CHUNKS) + 1), "layers")
    assert {chunk.tier for chunk in second.ask()[0].chunks} == {v1.TIER_HOST_MEMORY}


def test_a_prompt_that_waits_has_its_chunks_brought(v1, start):
    first = start()
    first.put()
    first.stop()
    second = start("--max-batch-size", "1")
    count = v1.GenerateRequest(prompt=v1.Prompt(question="Count."),
                               sampling=v1.SamplingOptions(max_tokens=1500, ignore_eos=True))
    busy = second.inference.Generate(count)
    next(busy)
    lookups = second.metrics()["kvblend_store_lookups_total"]
    # There is no room for it in the batch.
    request = v1.GenerateRequest(prompt=prompt_of(v1, CHUNKS), blend=v1.BlendOptions(store_misses=False),
                                 sampling=v1.SamplingOptions(max_tokens=2))
    waiting = threading.Thread(target=lambda: list(second.inference.Generate(request)))
    waiting.start()
    wait_until(lambda: second.metrics()["kvblend_store_prefetched_total"] == len(CHUNKS) + 1, "prefetch")
    assert second.metrics()["kvblend_store_lookups_total"] == lookups, "its turn has not come"
    # Nor does it hold up what needs no room in the batch.
    assert second.ask([])[0].prompt_tokens > 0
    assert second.metrics()["kvblend_num_requests_waiting"] == 1
    busy.cancel()
    waiting.join()
    assert {chunk.tier for chunk in second.ask()[0].chunks} == {v1.TIER_HOST_MEMORY}


def test_a_server_that_sets_the_ratio_says_how(v1, start):
    flags = ("--ratio", "auto", "--ratio-min", "0.2", "--ratio-max", "0.6", "--min-recomputed-tokens", "0")
    first = start(*flags)
    first.put()
    assert first.stop() == 0
    second = start(*flags, "--load-pipeline-depth", "1")
    loading = second.ask()[0].loading
    assert loading.mode == v1.RATIO_MODE_AUTO
    assert (loading.ratio_min, loading.ratio_max) == (0.2, 0.6)
    assert not loading.predicted and loading.ratio == 0.2, "the disk has not been read before"
    assert [(read.tier, read.bytes > 0, read.bytes_per_second) for read in loading.reads] == [(v1.TIER_DISK, True, 0)]
    loading = second.ask()[0].loading
    assert loading.predicted and 0.2 <= loading.ratio <= 0.6 and not loading.reads
    assert loading.predicted_seconds >= loading.predicted_compute_seconds > 0
    assert loading.compute_seconds_per_token > 0
    # Passes of a few dozen tokens can take as long as one another: what a token costs shows in one of hundreds.
    asked = second.ask([*CHUNKS, CHUNKS[0] * 20], ratio=0.3)[0]
    assert (asked.loading.mode, asked.loading.ratio) == (v1.RATIO_MODE_FIXED, 0.3)
    metrics = second.metrics()
    assert metrics['kvblend_read_bandwidth_bytes_per_second{tier="disk"}'] > 0
    assert metrics["kvblend_compute_seconds_per_token"] > 0 and metrics["kvblend_place_seconds_per_token"] > 0
    assert metrics['kvblend_chosen_ratio_count{mode="auto"}'] == 2
    assert metrics['kvblend_chosen_ratio_count{mode="fixed"}'] == 1
    assert metrics["kvblend_prefill_prediction_ratio_count"] == 2


def test_without_a_disk_nothing_is_durable(server):
    assert not any(entry.durable for entry in server.put(namespace="no disk"))


@pytest.mark.parametrize("damage", ["flip", "truncate", "foreign"])
def test_damaged_files_are_misses(v1, start, tmp_path, damage):
    first = start()
    first.put()
    _, expected_full = first.ask(reuse=v1.REUSE_NOTHING)
    first.stop()
    files = entry_files(tmp_path)
    assert len(files) == 4
    for file in files:
        content = bytearray(file.read_bytes())
        if damage == "flip":
            content[len(content) // 2] ^= 0x10
        elif damage == "truncate":
            del content[len(content) // 4096 // 2 * 4096:]
        else:
            content[:] = b"not an entry" * 1000
        file.write_bytes(content)

    second = start()
    report, logprobs = second.ask()
    assert {chunk.source for chunk in report.chunks} == {v1.CHUNK_SOURCE_MISS}
    assert logprobs == expected_full
    # What flips is found when it is read, the rest when the folder is.
    wait_until(lambda: second.metrics()["kvblend_disk_quarantined_total"] == 4, "quarantine")
    assert not entry_files(tmp_path)
    assert all(entry.durable and not entry.already_present for entry in second.put())
    assert {chunk.source for chunk in second.ask()[0].chunks} == {
        v1.CHUNK_SOURCE_EXACT, v1.CHUNK_SOURCE_BLENDED}


def test_one_server_per_folder(start, tmp_path):
    start()
    second = run("kvblend-server", "--model", MODEL, "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--api-address", "none",
                 "--chunk-disk-path", tmp_path)
    assert second.returncode == 1
    assert str(tmp_path) in second.stdout + second.stderr


def test_the_command_line_keeps_chunks_between_runs(tmp_path):
    texts = []
    for number, text in enumerate(CHUNKS):
        (tmp_path / f"{number}.txt").write_text(text)
        texts.append(str(tmp_path / f"{number}.txt"))
    command = ("kvblend", "generate", "--model", MODEL, "--chunk-disk-path", tmp_path / "disk", "--system", SYSTEM_TEXT,
               "--max-tokens", 8, "--question", "Where was Ada Lorne born?", "--ratio", 1, "--chunk-file", *texts)
    first, second = run(*command), run(*command)
    assert first.returncode == 0 and second.returncode == 0, first.stderr + second.stderr
    assert first.stdout and first.stdout == second.stdout  # the answer, and no log
    assert "from disk" not in first.stderr
    assert second.stderr.count("from disk") == len(CHUNKS)


def test_killed_servers_lose_nothing_that_was_durable(v1, start, start_server, tmp_path):
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    durable = {}  # key -> text
    texts = 0

    for _ in range(KILLS):
        server = start()
        assert not list((tmp_path / "tmp").iterdir())

        def put_until_killed(first):
            number = first
            try:
                while True:
                    text = f"Passage {number}: the bridge of Aldmoor has {number} arches, and its river no name.\n"
                    for entry in server.chunks.Put(v1.PutChunksRequest(
                            system_text=SYSTEM_TEXT, lead_in=LEAD_IN, chunks=[text])):
                        if entry.durable:
                            durable[entry.key] = text
                    number += 1
            except grpc.RpcError:
                pass

        def get_until_killed():
            try:
                while True:
                    known = list(durable.values())
                    server.ask(chunks=rng.sample(known, min(3, len(known))))
            except grpc.RpcError:
                pass

        workers = [threading.Thread(target=put_until_killed, args=(texts,)), threading.Thread(target=get_until_killed)]
        texts += 1000
        for worker in workers:
            worker.start()
        time.sleep(rng.uniform(0.2, 2.0))
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        for worker in workers:
            worker.join()

    assert durable
    survivor = start()
    assert not list((tmp_path / "tmp").iterdir())
    keys = list(durable)
    missing = []
    for begin in range(0, len(keys), 1000):
        missing += survivor.chunks.Stat(v1.StatChunksRequest(keys=keys[begin:begin + 1000])).missing_keys
    assert not missing

    # Every chunk's KV is what a server computes that never saw this disk.
    fresh = start_server(*FLAGS)
    known = list(durable.values())
    for begin in range(0, len(known), 8):
        chunks = known[begin:begin + 8]
        fresh.put(chunks)
        report, from_disk = survivor.ask(chunks, policy=v1.POLICY_NONE)
        assert v1.TIER_UNSPECIFIED not in {chunk.tier for chunk in report.chunks}
        assert from_disk == fresh.ask(chunks, policy=v1.POLICY_NONE)[1]
    assert survivor.metrics()["kvblend_disk_quarantined_total"] == 0
    print(f"{KILLS} kills, {len(durable)} chunks")
