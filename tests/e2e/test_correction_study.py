"""The tools behind docs/quality.md, "What a token does not know": pairs are what they are said to be, and rows of the table
leave nothing where the pairs were made by just that. And the one behind docs/performance.md, "8 bits", which has the model
from them."""
import json
import re
import sys

import numpy as np
import pytest

from conftest import BIN_DIR, ENVIRONMENT, MODEL, ROOT, run

sys.path.insert(0, str(ROOT / "tests/bench/models"))
import correction_study  # noqa: E402

SAMPLE = ROOT / "tests/fixtures/musique_sample.json"
CHANNELS, PLACES = 8, 8


def pairs_of(random, count, deviation):
    """Pairs of one layer, whose d is deviation(x, place, depth)."""
    x = random.standard_normal((count, CHANNELS)) + 3
    place = np.arange(count) % PLACES
    begin = random.integers(0, 6000, count)
    depth = np.digitize(begin, correction_study.DEPTHS)
    about = {"places": PLACES, "rank": 2, "ridge": 1e-9}
    return correction_study.Pairs(about, x=x, d=deviation(x, place, depth), weights=random.uniform(0.5, 2, count),
                                  place=place, begin=begin, depth=depth, before=random.standard_normal(x.shape))


def test_each_row_explains_what_it_is_made_for():
    random = np.random.default_rng(5)
    offset = random.standard_normal(CHANNELS)
    of_place = random.standard_normal((PLACES, CHANNELS))
    of_both = random.standard_normal((PLACES, len(correction_study.DEPTHS) + 1, CHANNELS))
    scale = random.standard_normal(CHANNELS)
    one_way, to = random.standard_normal((2, CHANNELS))
    made_by = {
        "offset": lambda x, place, depth: np.tile(offset, (len(x), 1)),
        "offset of each place in the chunk": lambda x, place, depth: of_place[place],
        "offset of each place at each depth": lambda x, place, depth: of_both[place, depth],
        "scale, and offset of each place": lambda x, place, depth: scale * x + of_place[place],
        "and 2 directions (kvblend)": lambda x, place, depth: np.outer(x @ one_way, to) + of_place[place],
        "2 directions, offset of each place at each depth":
            lambda x, place, depth: np.outer(x @ one_way, to) + of_both[place, depth],
    }
    left = {}
    for name, deviation in made_by.items():
        fitted, judged = pairs_of(random, 2000, deviation), pairs_of(random, 300, deviation)
        rows = correction_study.rows(fitted, judged, np.arange(2000) % 10)
        left[name] = {row: correction_study.stays(judged, correction) for row, correction in rows}
        assert left[name][name] < 0.05, left[name]
    assert left["offset of each place in the chunk"]["offset"] > 0.5
    assert left["offset of each place at each depth"]["offset of each place in the chunk"] > 0.5
    assert left["and 2 directions (kvblend)"]["scale, and offset of each place"] > 0.05
    for shares in left.values():
        assert shares["linear map fitted to the pairs judged on"] <= shares["linear map, offset of each place"] + 1e-3


@pytest.mark.skipif(not (BIN_DIR / "correction_pairs").exists(), reason="built without benchmarks")
def test_pairs_of_a_model_are_read_as_they_were_written(tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "OPENBLAS_NUM_THREADS", "1")  # other tests run at the same time
    folder = tmp_path / "pairs"
    done = run("correction_pairs", MODEL, folder, "--data", SAMPLE, "--n", "5", "--passages", "2", "--every", "16",
               "--layers", "0,7")
    assert done.returncode == 0, done.stderr
    about = json.loads((folder / "pairs.json").read_text())
    pairs = correction_study.Folder(folder)
    assert about["layers"] == [0, 7] and len(about["prompts"]) == 5 and len(about["chunks"]) == 5
    first, later = pairs.layer(0), pairs.layer(7)
    assert len(first.x) == len(later.x) == len(about["pairs"])
    # The first layer's K and V know nothing of other tokens: what is stored differs by its rounding alone.
    assert np.abs(first.d).mean() < 0.02 * np.abs(first.x).mean()
    assert np.abs(later.d).mean() > 0.05 * np.abs(later.x).mean()
    assert (later.begin >= 20).all() and later.weights.min() > 0

    study = run(sys.executable, ROOT / "tests/bench/models/correction_study.py", folder)
    assert study.returncode == 0, study.stderr
    offset = re.search(r"\| offset \| ([\d.]+)% \|", study.stdout)
    assert offset and 0 < float(offset[1]) < 110, study.stdout


def prompts_in(folder, passages):
    done = run("prompt_kv", MODEL, folder, "--data", SAMPLE, "--n", "3", "--passages", str(passages))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.skipif(not (BIN_DIR / "prompt_kv").exists(), reason="built without benchmarks")
def test_of_a_prompt_what_is_reused_stands_beside_what_full_prefill_has(tmp_path):
    folder = prompts_in(tmp_path / "prompts", 2)
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{n}.{kind}" for n in range(3) for kind in ("json", "kv"))
    about = json.loads((folder / "1.json").read_text())
    begin, (chunk,) = about["question_begin"], about["chunks"]
    assert len(about["answer"]) == 16 and 0 < chunk[0] < sum(chunk) <= begin < len(about["tokens"])
    kv = np.fromfile(folder / "1.kv", dtype="<f2").astype(np.float32).reshape(30, 2, begin, 384)
    stored, fresh = kv[:, 0], kv[:, 1]
    assert (stored[:, :chunk[0]] == fresh[:, :chunk[0]]).all()
    apart = np.abs(stored - fresh)[:, chunk[0]:sum(chunk)].mean((1, 2)) / np.abs(fresh).mean((1, 2))
    assert apart[0] < 0.02 and (apart[8:] > 0.05).all(), apart


@pytest.mark.skipif(not (BIN_DIR / "prompt_kv").exists(), reason="built without benchmarks")
def test_a_model_written_elsewhere_finds_the_divergence_that_gradients_lower(tmp_path):
    for package in ("jax", "gguf"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder, correction = prompts_in(tmp_path / "prompts", 2), tmp_path / "sample.kvcorrection"
    done = run("kvblend", "calibrate", "--model", MODEL, "--data", SAMPLE, "--passages", "2", "--attention-passes", "0",
               "--output", correction)
    assert done.returncode == 0, done.stderr
    done = run(sys.executable, ROOT / "tests/bench/models/correction_gradients.py", MODEL, correction, "--fit", folder,
               "--judge", folder, "--passes", "4")
    assert done.returncode == 0, done.stderr
    row = re.search(r"\| prompts \| 3 \| ([\d.]+) \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|", done.stdout)
    assert row, done.stdout
    stored, corrected, tuned = map(float, row.groups())
    assert 0 < tuned < corrected < stored < 1, done.stdout


def test_finer_codes_of_keys_and_values_cost_less(tmp_path):
    for package in ("jax", "gguf"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"96": [1 + 37 * i % 40000 for i in range(96)]}))
    done = run(sys.executable, ROOT / "tests/bench/models/kv_codes.py", MODEL, tokens)
    assert done.returncode == 0, done.stderr
    heading, _, names, _, *rows = done.stdout.splitlines()
    assert heading == "KL mean over 96 tokens" and names == "| K or V in | K | V | both |"
    found = {name: tuple(map(float, values)) for name, *values in (row.strip("| ").split(" | ") for row in rows)}
    assert list(found) == ["bf16", "a step for 32 channels", "a step for 16", "a step and a zero point for 32",
                           "a step and a zero point for 16"]
    for part in range(3):
        costs = [values[part] for values in found.values()]
        assert 0 < costs[0] < costs[4] < costs[1], done.stdout
    assert found["a step for 32 channels"][0] > found["a step for 32 channels"][1], done.stdout
