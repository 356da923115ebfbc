"""Tenants beside each other: no call of either protocol shows, changes or times what is another's, shared namespaces can be
read and nothing more, and what a tenant stores has its limit, also among others and after a restart."""

import importlib
import json
import math
import random
import re
import statistics
import threading
import time

import pytest

from conftest import FLAGS, LEAD_IN, QUESTION, ROOT, SYSTEM_TEXT, prompt_of, refused, wait_until
from test_keys import http, make_key, shows

SECRETS = ["The red vault opens with the word heliotrope, which nobody else may know.\n",
           "The red vault has a second door behind the cedar in the courtyard.\n"]
LABEL = "label of red alone"
PAIRS = 60


def started(start_server, folder, tenants, *flags):
    """A server with a key for each of the tenants: name -> flags of `key new`."""
    path = folder / "keys.jsonl"
    made = {name: make_key("--tenant", name, *more) for name, more in tenants.items()}
    path.write_text("".join(f"{line}\n" for _, line in made.values()))
    server = start_server(*FLAGS, "--api-keys", path, *flags)
    server.keys_path = path
    server.keys = {name: key for name, (key, _) in made.items()}
    server.lines = {name: line for name, (_, line) in made.items()}
    return server


@pytest.fixture(scope="module")
def tenants(start_server, tmp_path_factory):
    return started(start_server, tmp_path_factory.mktemp("tenants"),
                   {"red": ["--max-priority", "high"], "blue": ["--read", "corpus", "--priority", "low"], "corpus": []})


def put(server, v1, name, chunks, **fields):
    request = v1.PutChunksRequest(system_text=SYSTEM_TEXT, lead_in=LEAD_IN, chunks=chunks, **fields)
    return [progress.key for progress in server.chunks.Put(request, **shows(server.keys[name]))]


def all_of(server, v1, name, namespace=""):
    listed = server.chunks.List(v1.ListChunksRequest(namespace=namespace, page_size=1000), **shows(server.keys[name]))
    return {chunk.key: (chunk.label, chunk.pinned) for chunk in listed.chunks}


def grpc_calls(v1, keys, namespace):
    """Every method, by service and name: its request about red's chunks."""
    anchor = {"namespace": namespace, "system_text": SYSTEM_TEXT, "lead_in": LEAD_IN}
    about = {"namespace": namespace, "keys": keys}
    blend = v1.BlendOptions(store_misses=False)
    return {
        ("inference", "Generate"): v1.GenerateRequest(namespace=namespace, prompt=prompt_of(v1, SECRETS), blend=blend,
                                                      sampling={"max_tokens": 2}),
        ("inference", "Score"): v1.ScoreRequest(namespace=namespace, prompt=prompt_of(v1, SECRETS), blend=blend,
                                                continuation_text="x"),
        ("chunks", "Put"): v1.PutChunksRequest(chunks=["mine"], **anchor),
        ("chunks", "Split"): v1.SplitDocumentRequest(text="".join(SECRETS), chunk_tokens=16, overlap_tokens=0, **anchor),
        ("chunks", "Prefetch"): v1.PrefetchChunksRequest(chunks=SECRETS, **anchor),
        ("chunks", "Stat"): v1.StatChunksRequest(**about),
        ("chunks", "List"): v1.ListChunksRequest(namespace=namespace),
        ("chunks", "Delete"): v1.DeleteChunksRequest(**about),
        ("chunks", "Pin"): v1.PinChunksRequest(**about),
        ("admin", "GetInfo"): v1.GetInfoRequest(),
        ("admin", "UpdateCorrection"): v1.UpdateCorrectionRequest(),
    }


def answer_of(server, service, method, request, key):
    """The messages of an answer."""
    answer = getattr(getattr(server, service), method)(request, **shows(key))
    return list(answer) if method in ("Generate", "Score", "Put") else [answer]


def test_no_grpc_call_reaches_anothers_chunks(v1, tenants):
    keys = put(tenants, v1, "red", SECRETS, label=LABEL)
    before = all_of(tenants, v1, "red")
    methods = {(module, method.name) for module in ("inference", "chunks", "admin")
               for service in importlib.import_module(f"kvblend.v1.{module}_pb2").DESCRIPTOR.services_by_name.values()
               for method in service.methods}
    assert set(grpc_calls(v1, keys, "")) == methods, "a call that is not tested"
    blue = tenants.keys["blue"]
    for (service, method), request in grpc_calls(v1, keys, "red").items():
        if any(field.name == "namespace" for field in request.DESCRIPTOR.fields):
            with refused("PERMISSION_DENIED", "red"):
                answer_of(tenants, service, method, request, blue)
    for (service, method), request in grpc_calls(v1, keys, "").items():
        if method == "UpdateCorrection":
            with refused("PERMISSION_DENIED"):
                answer_of(tenants, service, method, request, blue)
            continue
        text = str(answer_of(tenants, service, method, request, blue))
        assert LABEL not in text
        if method == "List":  # of its own
            assert not any(key in text for key in before)
            continue
        for shown in ("CHUNK_SOURCE_EXACT", "CHUNK_SOURCE_BLENDED", "OTHER_ANCHOR", "TIER_HOST_MEMORY", "stored: true",
                      "deleted: ", "changed: "):
            assert shown not in text, method
    assert all_of(tenants, v1, "red") == before


def http_calls(keys, namespace):
    """Every operation of openapi.json: (method, path, body) of requests about red's chunks."""
    chat = {"messages": [{"role": "system", "content": SYSTEM_TEXT}, {"role": "user", "content": QUESTION}], "max_tokens": 2}
    documents = {"documents": SECRETS, "kvblend": {"namespace": namespace, "lead_in": LEAD_IN,
                                                   "blend": {"store_misses": False}}}
    anchor = {"namespace": namespace, "system_text": SYSTEM_TEXT, "lead_in": LEAD_IN}
    about = {"namespace": namespace, "keys": keys}
    query = f"?namespace={namespace}" if namespace else ""
    return {
        "chat": ("POST", "/v1/chat/completions", chat | documents),
        "cohereChat": ("POST", "/v2/chat", chat | {"model": "m"} | documents),
        "complete": ("POST", "/v1/completions", {"prompt": QUESTION, "max_tokens": 2} | documents),
        "models": ("GET", "/v1/models", None),
        "model": ("GET", "/v1/models/red", None),
        "putChunks": ("POST", "/v1/chunks", anchor | {"chunks": ["mine"]}),
        "listChunks": ("GET", f"/v1/chunks{query}", None),
        "getChunk": ("GET", f"/v1/chunks/{keys[0]}{query}", None),
        "deleteChunk": ("DELETE", f"/v1/chunks/{keys[0]}{query}", None),
        "statChunks": ("POST", "/v1/chunks/stat", about),
        "deleteChunks": ("POST", "/v1/chunks/delete", about),
        "pinChunks": ("POST", "/v1/chunks/pin", about),
        "splitDocument": ("POST", "/v1/chunks/split", anchor | {"text": "".join(SECRETS), "chunk_tokens": 16,
                                                                "overlap_tokens": 0}),
        "prefetchChunks": ("POST", "/v1/chunks/prefetch", anchor | {"chunks": SECRETS}),
        "openapi": ("GET", "/openapi.json", None),
    }


def test_no_http_call_reaches_anothers_chunks(v1, tenants):
    keys = put(tenants, v1, "red", SECRETS, label=LABEL)
    before = all_of(tenants, v1, "red")
    document = json.loads((ROOT / "server/api/openapi.json").read_text())
    operations = {operation["operationId"] for path in document["paths"].values() for operation in path.values()
                  if "operationId" in operation}
    assert set(http_calls(keys, "")) == operations, "an operation that is not tested"
        "info": ("GET", "/v1/info", None),
    blue = tenants.keys["blue"]
    model = http(tenants, "/v1/models", blue)[1]["data"][0]["id"]
    for name, (method, path, body) in http_calls(keys, "red").items():
        if "red" not in path.partition("?")[2] and '"namespace": "red"' not in json.dumps(body):
            continue
        if name == "cohereChat":
            body["model"] = model
        status, answer = http(tenants, path, blue, body, method)
        assert status == 403 and "red" in json.dumps(answer), (name, answer)
    for name, (method, path, body) in http_calls(keys, "").items():
        if name == "cohereChat":
            body["model"] = model
        status, answer = http(tenants, path, blue, body, method)
        expected = 404 if name in ("model", "getChunk", "deleteChunk") else 200
        text = json.dumps(answer)
        assert status == expected, (name, answer)
        assert LABEL not in text
        if name == "listChunks":  # of its own
            assert not any(key in text for key in before)
        elif name != "openapi":
            for shown in ("CHUNK_SOURCE_EXACT", "CHUNK_SOURCE_BLENDED", "OTHER_ANCHOR", "TIER_HOST_MEMORY", '"stored": true'):
                assert shown not in text, (name, answer)
            for count in re.findall(r'"(?:deleted|changed|cached_tokens)": "?(\d+)', text):
                # The anchor, which the tenant's own put has stored, may be reused.
                assert count == "0" or "cached_tokens" in text, (name, answer)
    assert all_of(tenants, v1, "red") == before


def test_shared_namespaces_can_be_read_and_nothing_more(v1, tenants):
    passage = "The observatory of Corvane has a telescope of three metres.\n"
    keys = put(tenants, v1, "corpus", [passage])
    blue, red = tenants.keys["blue"], tenants.keys["red"]
    own = all_of(tenants, v1, "blue")

    def sources(key, **blend):
        request = v1.GenerateRequest(prompt=prompt_of(v1, [SECRETS[0], passage]), sampling={"max_tokens": 1},
                                     blend=v1.BlendOptions(store_misses=False, **blend))
        events = list(tenants.inference.Generate(request, **shows(key)))
        return events[0].prompt.chunks[1].source
        if name == "info":  # what the server is made for
            assert answer["totals_left_out"] and "correction" not in answer
            assert {field for field, value in answer["load"].items() if float(value)} == {"pages_total"}
            assert {field for field, value in answer["store"].items() if float(value)} == {"budget_bytes", "pinned_byte_limit"}

    assert sources(blue) == v1.CHUNK_SOURCE_BLENDED
    assert sources(red) == v1.CHUNK_SOURCE_MISS
    with refused("PERMISSION_DENIED", "blend.read_namespaces", "red"):
        sources(blue, read_namespaces=["red"])
    with refused("PERMISSION_DENIED", "blend.read_namespaces", "corpus", "none"):
        sources(red, read_namespaces=["corpus"])
    assert set(all_of(tenants, v1, "blue", "corpus")) >= set(keys)
    for method, request in (("Put", v1.PutChunksRequest(namespace="corpus", chunks=["x"])),
                            ("Delete", v1.DeleteChunksRequest(namespace="corpus", all=True)),
                            ("Delete", v1.DeleteChunksRequest(namespace="corpus", keys=keys)),
                            ("Pin", v1.PinChunksRequest(namespace="corpus", keys=keys))):
        with refused("PERMISSION_DENIED", "corpus"):
            answer_of(tenants, "chunks", method, request, blue)
    assert all_of(tenants, v1, "blue") == own, "nothing of it becomes its own"


def test_priorities_are_those_of_the_key(v1, tenants):
    def ask(name, priority):
        request = v1.GenerateRequest(prompt=v1.Prompt(question="Hello?"), sampling={"max_tokens": 1}, priority=priority)
        return list(tenants.inference.Generate(request, **shows(tenants.keys[name])))

    assert ask("red", v1.PRIORITY_HIGH)
    with refused("PERMISSION_DENIED", "priority is 'high'; allowed: at most the key's, 'low'"):
        ask("blue", v1.PRIORITY_HIGH)
    body = {"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 1, "kvblend": {"priority": "normal"}}
    assert http(tenants, "/v1/chat/completions", tenants.keys["red"], body)[0] == 200
    assert http(tenants, "/v1/chat/completions", tenants.keys["blue"], body)[0] == 403
    body["kvblend"]["priority"] = "urgent"
    status, answer = http(tenants, "/v1/chat/completions", tenants.keys["red"], body)
    assert status == 400 and answer["error"]["param"] == "kvblend.priority"


def signed_rank(differences):
    """Wilcoxon's signed-rank statistic as a standard normal deviate (Wilcoxon, Biometrics Bulletin 1945)."""
    ranked = sorted((difference for difference in differences if difference), key=abs)
    n = len(ranked)
    positive = sum(rank for rank, difference in enumerate(ranked, 1) if difference > 0)
    return (positive - n * (n + 1) / 4) / math.sqrt(n * (n + 1) * (2 * n + 1) / 24)


def test_hits_and_misses_of_others_take_the_same_time(v1, tenants):
    """Sixty pairs, each in random order: a chunk that red has stored, and one that nobody has, both asked for by blue. A chance
    difference is taken for a real one once in 10,000 runs (3.9 standard deviations), and one of 0.8 standard deviations of
    the pairs' differences is found with a probability of 97%: 0.8 sqrt(60) sqrt(0.955) - 3.9 = 2.1 of the statistic's. What
    is to be found is much larger: blue's own hits, by the same test, as a control."""
    random_words = random.Random(20261123)
    words = [f"{word}{i}" for word in ("amber", "birch", "cedar", "delta", "ember") for i in range(6)]

    def text():
        random_words.shuffle(words)
        return " ".join(words) + ".\n"

    texts = {kind: [text() for _ in range(PAIRS)] for kind in ("red", "blue", "nobody", "none")}
    put(tenants, v1, "red", texts["red"])
    put(tenants, v1, "blue", texts["blue"])

    def seconds(chunk):
        request = v1.GenerateRequest(prompt=prompt_of(v1, [chunk]), sampling={"max_tokens": 1},
                                     blend=v1.BlendOptions(store_misses=False))
        start = time.perf_counter()
        events = list(tenants.inference.Generate(request, **shows(tenants.keys["blue"])))
        return time.perf_counter() - start, events[0].prompt.chunks[0].source

    def differences(hit, miss):
        found = []
        for one, other in zip(texts[hit], texts[miss]):
            pair = [(one, 1), (other, -1)]
            random_words.shuffle(pair)
            measured = {sign: seconds(chunk) for chunk, sign in pair}
            assert measured[-1][1] == v1.CHUNK_SOURCE_MISS
            assert (measured[1][1] == v1.CHUNK_SOURCE_MISS) == (hit != "blue")
            found.append(measured[1][0] - measured[-1][0])
        return found

    seconds(text())
    of_others, own = differences("red", "nobody"), differences("blue", "none")
    told_apart, control = signed_rank(of_others), signed_rank(own)
    print(f"medians: {statistics.median(of_others):.6f} s for another's, {statistics.median(own):.6f} s for one's own; "
          f"{told_apart:.2f} and {control:.2f} standard deviations")
    assert control < -3.9, "the test does not even find hits"
    assert abs(told_apart) < 3.9


def test_store_limits_hold_among_many_and_after_a_restart(v1, start_server, tmp_path):
    limit = 4_000_000
    disk = ("--chunk-disk-path", tmp_path / "disk", "--chunk-format", "int8")
    tenants_of = {"small": ["--store-bytes", limit], "large": []}
    server = started(start_server, tmp_path, tenants_of, *disk)

    def stored(name):
        listed = server.chunks.List(v1.ListChunksRequest(page_size=1000), **shows(server.keys[name]))
        return sum(chunk.size_bytes for chunk in listed.chunks), len(listed.chunks)

    def write(name, thread):
        for i in range(6):
            put(server, v1, name, [f"Passage {i} of {thread}: " + "one more word and " * 6])

    most = 0
    threads = [threading.Thread(target=write, args=(name, number)) for number, name in enumerate(["small"] * 4 + ["large"])]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        # In memory and on disk, each of which has the limit; a chunk in both is listed once.
        most = max(most, stored("small")[0])
    for thread in threads:
        thread.join()
    bytes_of_one = stored("large")[0] / stored("large")[1]
    assert stored("large")[1] >= 6
    assert 0 < stored("small")[0] <= most <= 2 * limit
    assert stored("small")[1] < 24
    with refused("RESOURCE_EXHAUSTED", "namespace 'small' may fill 4000000 bytes (store_bytes of its tenant)"):
        put(server, v1, "small", ["word " * int(2 * limit / bytes_of_one * 20)])
    server.stop()

    server.keys_path.write_text(server.lines["large"] + "\n" + server.lines["small"].replace(str(limit), str(limit // 2))
                                + "\n")
    again = start_server(*FLAGS, "--api-keys", server.keys_path, *disk)
    again.keys = server.keys
    server = again
    assert 0 < stored("small")[0] <= limit // 2
    assert stored("large")[1] >= 6
    put(server, v1, "small", ["After the restart: " + "one more word and " * 6])
    assert stored("small")[0] <= limit
    # And as soon as the file says so.
    fresh = tmp_path / "fresh"
    fresh.write_text(tenants_line(tmp_path, server))
    fresh.rename(tmp_path / "keys.jsonl")
    wait_until(lambda: stored("small")[0] == 0, "the new limit")


def tenants_line(folder, server):
    """The file, with a limit that no chunk fits."""
    text = (folder / "keys.jsonl").read_text()
    return re.sub(r'"store_bytes": ?\d+', '"store_bytes":1', text)
