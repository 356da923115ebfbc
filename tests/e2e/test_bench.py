"""A bench that is killed goes on, takes full prefill from where it is kept, and is the same in parts."""
import json
import signal
import subprocess

import pytest

from conftest import BIN_DIR, ENVIRONMENT, MODEL, ROOT, run, wait_until

SAMPLE = ROOT / "tests/fixtures/musique_sample.json"
BENCH = ("bench", "--model", MODEL, "--data", SAMPLE, "--n", "2", "--passages", "2", "--measure", "kl,f1",
         "--rows", "reuse,query:0.15", "--against", "cacheblend", "--max-context-tokens", "4096", "--no-self-check")


def rows_of(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_killed_resumed_cached_and_merged_it_says_the_same(tmp_path):
    results, cache = tmp_path / "results.jsonl", tmp_path / "references"
    kept = ("--reference-cache", cache, "--json", "-")
    process = subprocess.Popen([BIN_DIR / "kvblend", *map(str, (*BENCH, *kept, "--resume", results))], env=ENVIRONMENT,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: results.exists() and results.read_text().count("\n") == 2, "the first question")
    process.send_signal(signal.SIGKILL)
    process.wait()
    with open(results, "a") as file:
        file.write('{"data":"musique_sample","question":1,"ha')  # as if killed while writing

    resumed = run("kvblend", *BENCH, *kept, "--resume", results)
    rows = rows_of(resumed)
    assert [(row["policy"], row["n"]) for row in rows] == [("none", 2), ("query", 2), ("hkvd", 2)]
    assert rows[2]["anchored"] is False and rows[2]["corrected"] is False
    assert rows[1]["kl_mean"] < rows[0]["kl_mean"]
    low, high = rows[1]["against"]["ci95"]["kl_ratio"]
    assert low <= rows[1]["against"]["kl_ratio"] <= high
    assert f"questions in {results} already: 1\n" in resumed.stderr

    parts = []
    for part in ("1", "2"):
        parts.append(tmp_path / part)
        shard = run("kvblend", *BENCH, *kept, "--shard", f"{part}/2", "--resume", parts[-1])
        assert "2 results from" in shard.stderr and ", 0 computed" in shard.stderr, shard.stderr
    merged = rows_of(run("kvblend", "bench", "--merge", *parts, "--against", "cacheblend", "--json", "-"))
    for ours, theirs in zip(merged, rows):
        assert ours["kl_mean"] == pytest.approx(theirs["kl_mean"], rel=1e-3)

    other = run("kvblend", *BENCH, *kept, "--repeat", "7", "--resume", results)
    assert other.returncode != 0 and "repeats is 3 there and 7 here" in other.stderr
