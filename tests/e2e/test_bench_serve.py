"""kvblend bench serve against a running server: every kind of load, for a few seconds in all."""
import json
import signal
import subprocess

from conftest import BIN_DIR, ENVIRONMENT, ROOT, run, wait_until

SAMPLE = ROOT / "tests/fixtures/musique_sample.json"


def serve(server, *flags):
    done = run("kvblend", "bench", "serve", "--server", f"127.0.0.1:{server.grpc_port}", "--data", SAMPLE, "--n", 3,
               "--passages", 1, "--output-tokens", 4, "--json", "-", *flags)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done


def test_open_loop_with_curves_and_checked_answers(server, tmp_path):
    page, requests = tmp_path / "load.html", tmp_path / "requests.jsonl"
    rows, done = serve(server, "--rate", "4,8", "--requests", 6, "--rows", "full,query:0.15", "--check-answers", "--html", page,
                       "--per-request", requests)
    assert [(row["mode"], row["rate"]) for row in rows] == [
        ("full", None), ("query:0.15", None), ("full", 4), ("query:0.15", 4), ("full", 8), ("query:0.15", 8)]
    for row in rows:
        assert row["answered"] == row["requests"] == (3 if row["kind"] == "unloaded" else 6)
        assert row["mismatches"] == 0 and not row["errors"]
        assert 0 < row["ttft_s"]["p50"] <= row["ttft_s"]["p95"] <= row["e2e_s"]["max"]
    assert rows[3]["hit_rate"] == 1 and rows[2]["hit_rate"] is None
    assert "<svg" in page.read_text()
    lines = [json.loads(line) for line in requests.read_text().splitlines()]
    assert len(lines) == 6 + 24
    assert all(line["output_tokens"] == 4 and line["code"] == "OK" for line in lines)
    listed = run("kvblend", "chunks", "list", "--server", f"127.0.0.1:{server.grpc_port}", "--namespace", "kvblend-load")
    assert not [line for line in listed.stdout.splitlines() if "kvblend bench serve" in line]


def test_ctrl_c_while_chunks_are_stored_leaves_none_behind(v1, server):
    def stored():
        return [chunk.key for chunk in server.chunks.List(v1.ListChunksRequest(**{"namespace": "kvblend-load"})).chunks
                if chunk.label.startswith("kvblend bench serve")]

    assert not stored()
    command = [BIN_DIR / "kvblend", "bench", "serve", "--server", f"127.0.0.1:{server.grpc_port}", "--data", SAMPLE, "--n", "3",
               "--passages", "4", "--rate", "4"]
    with subprocess.Popen([str(word) for word in command], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as bench:
        wait_until(lambda: stored() or bench.poll() is not None, "the first chunk")
        bench.send_signal(signal.SIGINT)
        _, said = bench.communicate(timeout=60)
    assert bench.returncode == 130, said
    server.wait_until_idle()
    assert not stored()


def test_clients_hold_conversations(server):
    rows, _ = serve(server, "--clients", "1,3", "--requests", 6, "--turns", 2, "--zipf", 1, "--rows", "query:0.15")
    assert [row["clients"] for row in rows] == [1, 3]
    assert all(row["answered"] == row["requests"] == 6 for row in rows)


def test_search_ends_with_a_rate(server):
    rows, done = serve(server, "--search", 20, "--requests", 8, "--unloaded", 2, "--rows", "query:0.15", "--seed", 3)
    assert rows[0]["kind"] == "unloaded"
    assert rows[-1]["kind"] == "highest_rate" and rows[-1]["highest"] > 0
    assert "p95 of TTFT stays within" in done.stderr
