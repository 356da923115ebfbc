"""Chunks: putting, listing, looking at, pinning and deleting."""

from conftest import refused


def listed(v1, server, namespace):
    """Everything in the namespace but anchors: their own KV is stored like a chunk's, labelled "anchor"."""
    chunks = server.chunks.List(v1.ListChunksRequest(namespace=namespace, page_size=1000)).chunks
    return [chunk for chunk in chunks if chunk.label != "anchor"]


def test_put_reports_progress_and_does_nothing_twice(v1, server):
    first = server.put(namespace="progress", label="a corpus")
    assert [(entry.index, entry.done, entry.total) for entry in first] == [(0, 1, 3), (1, 2, 3), (2, 3, 3)]
    assert all(entry.num_tokens > 5 and not entry.already_present for entry in first)
    assert len({entry.key for entry in first}) == 3
    second = server.put(namespace="progress")
    assert all(entry.already_present for entry in second)
    assert [entry.key for entry in second] == [entry.key for entry in first]


def test_anchoring_and_anchor_are_part_of_the_key(v1, server):
    anchored = {entry.key for entry in server.put(namespace="anchors")}
    isolated = {entry.key for entry in server.put(namespace="anchors", anchoring=v1.ANCHORING_ISOLATED)}
    assert not anchored & isolated
    chunks = listed(v1, server, "anchors")
    assert len(chunks) == 6
    assert len({chunk.anchor_hash for chunk in chunks}) == 2
    assert len({chunk.content_key for chunk in chunks}) == 3


def test_list_pages_through_everything_once(v1, server):
    keys = {entry.key for entry in server.put(namespace="pages", chunks=[f"Passage number {i}.\n" for i in range(7)],
                                       anchoring=v1.ANCHORING_ISOLATED)}
    found, sizes, token = [], [], ""
    while True:
        page = server.chunks.List(v1.ListChunksRequest(namespace="pages", page_size=3, page_token=token))
        found += [chunk.key for chunk in page.chunks]
        sizes.append(len(page.chunks))
        token = page.next_page_token
        if not token:
            break
    assert sizes == [3, 3, 1]
    assert set(found) == keys and len(found) == 7
    assert len(listed(v1, server, "pages")) == 7


def test_stat_pin_unpin_delete(v1, server):
    keys = [entry.key for entry in server.put(namespace="care", label="labelled", pin=True)]
    missing = "0" * 64

    def stat():
        return server.chunks.Stat(v1.StatChunksRequest(namespace="care", keys=keys + [missing]))

    info = stat()
    assert [chunk.key for chunk in info.chunks] == keys
    assert list(info.missing_keys) == [missing]
    per_token = server.admin.GetInfo(v1.GetInfoRequest()).kv_format.chunk_bytes_per_token
    for chunk in info.chunks:
        assert chunk.pinned and chunk.label == "labelled" and chunk.tier == v1.TIER_HOST_MEMORY
        assert chunk.size_bytes >= chunk.num_tokens * per_token > 0
        assert 1.7e9 < chunk.created_unix_seconds <= chunk.last_used_unix_seconds
        assert chunk.compute_seconds > 0

    unpinned = server.chunks.Pin(v1.PinChunksRequest(namespace="care", keys=keys + [missing], pinned=False))
    assert unpinned.changed == 3 and list(unpinned.missing_keys) == [missing]
    assert not any(chunk.pinned for chunk in stat().chunks)
    server.chunks.Pin(v1.PinChunksRequest(namespace="care", keys=keys[:1]))  # pinned by default
    assert [chunk.pinned for chunk in stat().chunks] == [True, False, False]

    deleted = server.chunks.Delete(v1.DeleteChunksRequest(namespace="care", keys=[keys[0], missing]))
    assert deleted.deleted == 1 and list(deleted.missing_keys) == [missing]
    assert [chunk.key for chunk in stat().chunks] == keys[1:]
    assert server.chunks.Delete(v1.DeleteChunksRequest(namespace="care", all=True)).deleted >= 2
    assert not stat().chunks and not server.chunks.List(v1.ListChunksRequest(namespace="care")).chunks


def test_other_namespaces_are_out_of_reach(v1, server):
    keys = [entry.key for entry in server.put(namespace="mine")]
    assert not server.chunks.Stat(v1.StatChunksRequest(namespace="yours", keys=keys)).chunks
    assert server.chunks.Delete(v1.DeleteChunksRequest(namespace="yours", keys=keys)).deleted == 0
    assert server.chunks.Delete(v1.DeleteChunksRequest(namespace="yours", all=True)).deleted == 0
    assert len(server.chunks.Stat(v1.StatChunksRequest(namespace="mine", keys=keys)).chunks) == 3


def test_a_token_of_another_namespace_is_no_page(v1, server):
    server.put(namespace="tokens")
    with refused("INVALID_ARGUMENT"):
        server.chunks.List(v1.ListChunksRequest(namespace="tokens", page_token="nonsense"))
