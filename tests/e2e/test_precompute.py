"""`kvblend precompute` and `kvblend store`: a corpus into a store, through kills, and what lies there afterwards."""

import json
import random
import signal
import subprocess
import time

import pytest

from conftest import BIN_DIR, ENVIRONMENT, FLAGS, LEAD_IN, MODEL, SYSTEM_TEXT, run, wait_until

SIZES = ("--chunk-tokens", "64", "--overlap-tokens", "16")


def kvblend(*arguments, code=0):
    done = run("kvblend", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def sentences(count, seed):
    """Prose of a kind, in several scripts, with paragraphs."""
    rng = random.Random(seed)
    words = ["harbour", "river", "Westhaven", "built", "1852", "bridge", "of", "the", "caf\u00e9", "\u4e16\u754c", "\U0001F600"]
    text = ""
    for _ in range(count):
        text += " ".join(rng.choices(words, k=rng.randrange(3, 20))).capitalize() + rng.choice([". ", "! ", ".\n", ".\n\n"])
    return text


@pytest.fixture
def corpus(tmp_path):
    """A folder of documents, and how many are bad."""
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text(sentences(30, 1))
    (folder / "deep" / "b.md").write_text("# Title\n\n" + sentences(20, 2))
    lines = [json.dumps({"id": f"doc-{i}", "text": sentences(4, 10 + i)}) for i in range(6)]
    (folder / "c.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def chunks_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def document_texts(folder):
    """(path, id) -> text, as another program reads them."""
    texts = {(str(path), None): path.read_bytes() for path in folder.rglob("*") if path.suffix in (".txt", ".md")}
    for path in folder.rglob("*.jsonl"):
        for line in path.read_text().splitlines():
            document = json.loads(line)
            texts[str(path), document["id"]] = document["text"].encode()
    return texts


def test_a_chunk_that_no_store_holds_is_refused_once(start_server, corpus):
    """Only where the server says when to come back does waiting help."""
    small = start_server("--max-context-tokens", "2048", "--no-self-check", "--chunk-store-bytes", "64KiB")
    done = kvblend("precompute", corpus, "--server", f"127.0.0.1:{small.grpc_port}", *SIZES, "--in-flight", "1", code=1)
    assert "chunk store: a chunk of " in done.stderr and "allowed: at most 65536, " in done.stderr, done.stderr
    assert small.metrics()['kvblend_grpc_calls_total{code="FAILED_PRECONDITION",method="Put",service="Chunks"}'] == 1


def test_chunks_are_the_same_with_a_server_and_without(server, corpus, tmp_path):
    (corpus / "long.txt").write_text(sentences(3000, 3))  # goes to the server in pieces
    by_server, by_model = tmp_path / "by_server.jsonl", tmp_path / "by_model.jsonl"
    where = ("--server", f"127.0.0.1:{server.grpc_port}")
    kvblend("precompute", corpus, *where, *SIZES, "--dry-run", "--output", by_server)
    kvblend("precompute", corpus, "--model", MODEL, *SIZES, "--dry-run", "--output", by_model)
    assert by_server.read_bytes() == by_model.read_bytes()
    texts = document_texts(corpus)
    covered = dict.fromkeys(texts, 0)
    for chunk in chunks_of(by_server):
        name = chunk["path"], chunk.get("id")
        assert texts[name][chunk["begin_byte"]:chunk["end_byte"]] == chunk["text"].encode()
        assert chunk["num_tokens"] <= 64
        assert chunk["begin_byte"] <= covered[name] < chunk["end_byte"]
        covered[name] = chunk["end_byte"]
    assert covered == {name: len(text) for name, text in texts.items()}


def test_prompts_find_what_was_precomputed(v1, server, corpus, tmp_path):
    output = tmp_path / "chunks.jsonl"
    command = ("precompute", corpus, "--server", f"127.0.0.1:{server.grpc_port}", *SIZES, "--namespace", "corpus",
               "--system", SYSTEM_TEXT, "--lead-in", LEAD_IN, "--output", output, "--json")
    estimate = json.loads(kvblend(*command, "--dry-run").stdout)
    first = json.loads(kvblend(*command).stdout)
    assert first["chunks"] == first["computed_chunks"] == estimate["chunks"] == estimate["chunks_to_compute"] > 20
    assert first["tokens"] == estimate["tokens"] and first["documents"] == 8 and first["complete"]
    second = json.loads(kvblend(*command).stdout)
    assert second["chunks"] == first["chunks"] and second["computed_chunks"] == 0

    chunks = chunks_of(output)
    assert len(chunks) == first["chunks"]
    info = server.chunks.Stat(v1.StatChunksRequest(namespace="corpus", keys=[chunk["key"] for chunk in chunks]))
    assert not info.missing_keys
    assert [chunk.num_tokens for chunk in info.chunks] == [chunk["num_tokens"] for chunk in chunks]
    assert info.chunks[-1].label == f"{chunks[-1]['path']}@{chunks[-1]['begin_byte']}"
    placed = random.Random(4).sample(chunks, 3)
    report, *_ = server.generate(v1.GenerateRequest(
        namespace="corpus", sampling=v1.SamplingOptions(max_tokens=1),
        prompt=v1.Prompt(system_text=SYSTEM_TEXT, lead_in=LEAD_IN, chunks=[chunk["text"] for chunk in placed],
                         question="What was built?")))
    assert [chunk.key for chunk in report.chunks] == [chunk["key"] for chunk in placed]
    assert v1.CHUNK_SOURCE_MISS not in {chunk.source for chunk in report.chunks}


def test_bad_input_is_named_and_the_rest_done(server, corpus, tmp_path):
    (corpus / "binary.txt").write_bytes(b"\x7fELF\0\0")
    with open(corpus / "c.jsonl", "a", encoding="utf-8") as file:
        file.write("{broken\n")
    command = ("precompute", corpus, "--server", f"127.0.0.1:{server.grpc_port}", *SIZES, "--namespace", "bad")
    done = kvblend(*command, code=5)
    assert "binary.txt: is binary" in done.stderr and "c.jsonl line 7: no JSON" in done.stderr
    assert "8 documents" in done.stderr
    assert "binary.txt" in kvblend(*command, "--strict", code=2).stderr


def run_until(command, folder, seconds, sign):
    """Starts it, and sends a signal once it has stored something and so much time has passed."""
    process = subprocess.Popen([str(BIN_DIR / "kvblend"), *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=ENVIRONMENT)
    before = len(list(folder.rglob("*.kvb1")))
    wait_until(lambda: process.poll() is not None or len(list(folder.rglob("*.kvb1"))) > before, "the first chunk")
    time.sleep(seconds)
    process.send_signal(sign)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_killed_runs_go_on_where_they_were(corpus, tmp_path):
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    store = tmp_path / "store"
    command = ("precompute", corpus, "--model", MODEL, "--chunk-disk-path", store, *SIZES, "--json")
    for sign in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL):
        code, out, err = run_until(command, store, rng.uniform(0, 0.5), sign)
        if code == 0:  # it was faster
            break
        assert code == (130 if sign == signal.SIGINT else -signal.SIGKILL), err
        if sign == signal.SIGINT:
            assert json.loads(out)["complete"] is False
    stored = len(list(store.rglob("*.kvb1")))
    kvblend("store", "check", store)
    summary = json.loads(kvblend(*command).stdout)
    # Everything that was on disk was there, but for the anchor, which is no chunk.
    assert summary["complete"] and summary["computed_chunks"] <= summary["chunks"] - (stored - 1)
    assert json.loads(kvblend(*command).stdout)["computed_chunks"] == 0
    assert f"{summary['chunks'] + 1} sound, 0 damaged" in kvblend("store", "check", store).stdout


def test_store_beside_a_server_and_after_it(v1, start_server, tmp_path):
    server = start_server(*FLAGS, "--chunk-disk-path", str(tmp_path))
    keys = [entry.key for entry in server.chunks.Put(v1.PutChunksRequest(chunks=["One.\n", "Two.\n", "Three.\n"]))]
    server.chunks.Pin(v1.PinChunksRequest(keys=keys[:1]))
    fingerprint = server.admin.GetInfo(v1.GetInfoRequest()).model.fingerprint

    stats = json.loads(kvblend("store", "stats", tmp_path, "--json").stdout)
    assert [(group["model_fingerprint"], group["entries"], group["pinned_entries"]) for group in stats["groups"]] == [
        (fingerprint, 4, 1)]  # the anchor too
    kvblend("store", "check", tmp_path)
    for refused in (("gc", tmp_path, "--max-bytes", "0"), ("check", tmp_path, "--quarantine")):
        assert f"process {server.process.pid}" in kvblend("store", *refused, code=1).stderr
    assert "would remove  3 entries" in kvblend("store", "gc", tmp_path, "--max-bytes", "0", "--dry-run").stdout
    assert server.stop() == 0

    victim = tmp_path / "entries" / keys[1][:2] / keys[1][2:4] / f"{keys[1]}.kvb1"
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0x10
    victim.write_bytes(content)
    assert keys[1] in kvblend("store", "check", tmp_path, "--quarantine", code=5).stdout
    assert not victim.exists()
    assert "removed       0 entries" in kvblend("store", "gc", tmp_path, "--other-models-than", MODEL).stdout
    assert "removed       2 entries" in kvblend("store", "gc", tmp_path, "--model", fingerprint, "--quarantine").stdout
    server = start_server(*FLAGS, "--chunk-disk-path", str(tmp_path))
    assert list(server.chunks.Stat(v1.StatChunksRequest(keys=keys)).missing_keys) == keys[1:]


def make_tenants(path, **flags):
    """A file of keys for tenants with these flags of `kvblend key new`; name -> environment with the key."""
    made = {name: kvblend("key", "new", "--tenant", name, *more).stdout.split(maxsplit=1) for name, more in flags.items()}
    path.write_text("".join(f"{line.strip()}\n" for _, line in made.values()))
    return {name: ENVIRONMENT | {"KVBLEND_API_KEY": key} for name, (key, _) in made.items()}


def as_tenant(environment, *arguments, code=0):
    done = subprocess.run([str(BIN_DIR / "kvblend"), *map(str, arguments)], env=environment, capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_a_tenants_limits_slow_it_down_and_do_not_end_it(start_server, tmp_path):
    keys = make_tenants(tmp_path / "keys.jsonl", few=("--requests-per-minute", "30"), single=("--concurrent-requests", "1"))
    server = start_server(*FLAGS, "--api-keys", tmp_path / "keys.jsonl")
    folder = tmp_path / "docs"
    folder.mkdir()
    for i in range(33):
        (folder / f"{i}.txt").write_text(f"Document number {i}.\n")
    for name in ("few", "single"):
        command = ("precompute", folder, "--server", f"127.0.0.1:{server.grpc_port}", "--in-flight", "4", "--json")
        summary = json.loads(as_tenant(keys[name], *command).stdout)
        assert summary["complete"] and summary["computed_chunks"] == summary["documents"] == 33, (name, summary)


def test_what_does_not_fit_into_a_tenants_room_is_said_before_and_after(start_server, corpus, tmp_path):
    keys = make_tenants(tmp_path / "keys.jsonl", small=("--store-bytes", "5000000"))
    server = start_server(*FLAGS, "--api-keys", tmp_path / "keys.jsonl", "--chunk-disk-path", tmp_path / "store")
    output = tmp_path / "chunks.jsonl"
    command = ("precompute", corpus, "--server", f"127.0.0.1:{server.grpc_port}", *SIZES, "--json", "--output", output)
    dry = as_tenant(keys["small"], *command, "--dry-run")
    assert json.loads(dry.stdout)["store_bytes_limit"] == 5_000_000
    assert "the room in the store is smaller than the corpus" in dry.stderr
    output.unlink()
    done = as_tenant(keys["small"], *command, code=4)
    summary = json.loads(done.stdout)
    assert not summary["complete"] and not output.exists()
    assert "of the 4.8 MiB that the namespace may take" in done.stderr, done.stderr
    stored = summary["chunks"] - summary["missing_at_end"] - summary["not_durable"]
    assert 0 < stored < summary["chunks"] == summary["computed_chunks"]
    on_disk = [path for path in (tmp_path / "store").rglob("*.kvb1")]
    assert stored in (len(on_disk), len(on_disk) - 1)  # the anchor may be there too


def test_two_commands_do_not_write_one_file(server, corpus, tmp_path):
    output = tmp_path / "chunks.jsonl"
    command = [str(BIN_DIR / "kvblend"), "precompute", str(corpus), "--server", f"127.0.0.1:{server.grpc_port}", *SIZES,
               "--namespace", "twice", "--output", str(output)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) for _ in range(2)]
    errors = [process.communicate(timeout=120)[1] for process in both]
    codes = [process.returncode for process in both]
    assert 0 in codes, errors
    for code, error in zip(codes, errors):
        assert code == 0 or (code == 4 and "another process is writing" in error), (code, error)
    assert len({chunk["key"] for chunk in chunks_of(output)}) == len(chunks_of(output)) > 20
