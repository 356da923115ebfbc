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
from http.client import HTTPConnection

import pytest

from conftest import FLAGS, LEAD_IN, QUESTION, ROOT, SYSTEM_TEXT, prompt_of, refused, wait_until
from test_keys import http, make_key, shows

SECRETS = ["The red vault opens with the word heliotrope, which nobody else may know.\n",
           "The red vault has a second door behind the cedar in the courtyard.\n"]
LABEL = "label of red alone"


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


# The chunks of the test of times: of whom, and where they lie. What nobody has comes in the same numbers.
TRIPLES, OWN_TRIPLES = 30, 48
WORDS = [f"{word}{i}" for word in ("amber", "birch", "cedar", "delta", "ember") for i in range(3)]


def texts(count, seed):
    source = random.Random(seed)
    return [" ".join(source.sample(WORDS, len(WORDS))) + ".\n" for _ in range(count)]


ON_DISK = {"red": texts(2 * TRIPLES, "red on disk"), "blue": texts(OWN_TRIPLES, "blue on disk")}


@pytest.fixture(scope="module")
def tenants(start_server, tmp_path_factory, v1):
    """With chunks that lie on disk only: they were put before the server was started again."""
    folder = tmp_path_factory.mktemp("tenants")
    disk = ("--chunk-disk-path", folder / "disk", "--chunk-disk-bytes", "1GiB")
    before = started(start_server, folder,
                     {"red": ["--max-priority", "high"], "blue": ["--read", "corpus", "--priority", "low"], "corpus": []}, *disk)
    for name, chunks in ON_DISK.items():
        put(before, v1, name, chunks)
    assert before.stop() == 0
    server = start_server(*FLAGS, "--api-keys", before.keys_path, *disk)
    server.keys_path, server.keys, server.lines = before.keys_path, before.keys, before.lines
    return server


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
        ("admin", "GetInfo"): v1.GetInfoRequest(namespace=namespace),
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
        "info": ("GET", "/v1/info", None),
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
        if name == "info":  # what the server is made for
            assert answer["totals_left_out"] and "correction" not in answer
            assert {field for field, value in answer["load"].items() if float(value)} == {"pages_total"}
            assert {field for field, value in answer["store"].items() if float(value)} == {
                "budget_bytes", "namespace_byte_limit", "pinned_byte_limit"}
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


class Asking:
    """How long blue waits for a prompt with a chunk, whose answer is one token, over one of the protocols."""

    def __init__(self, v1, server, protocol):
        self._v1, self._server, self._protocol = v1, server, protocol
        self._connection = HTTPConnection("127.0.0.1", server.api_port, timeout=120)

    def __call__(self, chunk, tenant="blue"):
        """(seconds, where the chunk's KV came from, the tier)."""
        return (self._over_grpc if self._protocol == "gRPC" else self._over_http)(chunk, shows(self._server.keys[tenant]))

    def _over_grpc(self, chunk, key):
        request = self._v1.GenerateRequest(prompt=prompt_of(self._v1, [chunk]), sampling={"max_tokens": 1},
                                           blend=self._v1.BlendOptions(store_misses=False))
        start = time.perf_counter()
        events = list(self._server.inference.Generate(request, **key))
        seconds = time.perf_counter() - start
        told = events[0].prompt.chunks[0]
        return seconds, self._v1.ChunkSource.Name(told.source), self._v1.Tier.Name(told.tier)

    def _over_http(self, chunk, key):
        body = json.dumps({"messages": [{"role": "system", "content": SYSTEM_TEXT}, {"role": "user", "content": QUESTION}],
                           "documents": [chunk], "max_tokens": 1,
                           "kvblend": {"lead_in": LEAD_IN, "blend": {"store_misses": False}}})
        start = time.perf_counter()
        self._connection.request("POST", "/v1/chat/completions", body,
                                 {"Content-Type": "application/json", **dict(key["metadata"])})
        answer = json.loads(self._connection.getresponse().read())
        seconds = time.perf_counter() - start
        told = answer["kvblend"]["prompt"]["chunks"][0]
        return seconds, told["source"], told.get("tier", "TIER_UNSPECIFIED")


def test_hits_and_misses_of_others_take_the_same_time(v1, tenants):
    """Over each protocol thirty triples, each in random order: a chunk that red has in memory, one that red has on disk, and one that
    nobody has, all asked for by blue. What is compared is the pairs of a triple. A chance difference is taken for a real one once in
    10,000 comparisons (3.9 standard deviations; the statistic of thirty pairs can be 4.8), and one of 1.5 standard deviations of the
    pairs' differences is found with a probability of 99% (simulated, normally distributed). What is to be found is larger: blue's own hits, in
    both tiers, are found by the same test, as a control."""
    order = random.Random(20261123)
    in_memory = {"red": texts(2 * TRIPLES, "red in memory"), "blue": texts(OWN_TRIPLES, "blue in memory")}
    for name, chunks in in_memory.items():
        put(tenants, v1, name, chunks)
    nobodys = iter(texts(2 * TRIPLES + OWN_TRIPLES + 2, "nobody"))

    def differences(ask, memory, disk, expected):
        """Of a chunk in memory, and of one on disk, to one that is nowhere."""
        found, tiers = {"memory": [], "disk": []}, []
        for triple in zip(memory, disk):
            members = [*zip(("memory", "disk"), triple), ("nowhere", next(nobodys))]
            order.shuffle(members)
            measured = {name: ask(chunk) for name, chunk in members}
            assert measured["nowhere"][1] == "CHUNK_SOURCE_MISS"
            for name in found:
                assert measured[name][1] == (expected or "CHUNK_SOURCE_MISS")
                found[name].append(measured[name][0] - measured["nowhere"][0])
            assert measured["memory"][2] == ("TIER_HOST_MEMORY" if expected else "TIER_UNSPECIFIED")
            tiers.append(measured["disk"][2])
        # A request that waits a moment for its turn has its chunk fetched from disk into memory before it looks there.
        assert set(tiers) <= {"TIER_DISK", "TIER_HOST_MEMORY"} if expected else set(tiers) == {"TIER_UNSPECIFIED"}
        assert not expected or tiers.count("TIER_DISK") > len(tiers) / 2
        return found

    told_apart = {}
    for part, protocol in enumerate(("gRPC", "HTTP")):
        ask = Asking(v1, tenants, protocol)
        ask(next(nobodys))
        share = slice(part * TRIPLES, (part + 1) * TRIPLES)
        for tier, of_others in differences(ask, in_memory["red"][share], ON_DISK["red"][share], None).items():
            told_apart[protocol, tier] = signed_rank(of_others)
            print(f"{protocol}, {tier}: median {statistics.median(of_others):.6f} s, {told_apart[protocol, tier]:.2f} standard deviations")
        # It is the chunk that red has, asked for as red would.
        assert ask(in_memory["red"][part], "red")[1:] == ("CHUNK_SOURCE_EXACT", "TIER_HOST_MEMORY")
        assert ask(ON_DISK["red"][part], "red")[1] == "CHUNK_SOURCE_EXACT"
    own = differences(Asking(v1, tenants, "gRPC"), in_memory["blue"], ON_DISK["blue"], "CHUNK_SOURCE_EXACT")
    for tier, control in own.items():
        print(f"one's own, {tier}: median {statistics.median(control):.6f} s, {signed_rank(control):.2f} standard deviations")
        # Mostly a hit is the faster one. Where processors compute such short chunks sooner than they look them up, it is the slower one.
        assert abs(signed_rank(control)) > 3, "the test does not even find hits"
    assert all(abs(deviation) < 3.9 for deviation in told_apart.values()), told_apart


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
