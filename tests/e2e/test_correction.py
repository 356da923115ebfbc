"""A correction is learned by the command line, found by the server, and refused when it is not whole or not the model's."""
import json
import subprocess

import pytest

from conftest import BIN_DIR, CHUNKS, ENVIRONMENT, FLAGS, MODEL, ROOT, run, wait_until

SAMPLE = ROOT / "tests/fixtures/musique_sample.json"


def test_what_calibrate_writes_brings_reuse_nearer_to_full_prefill(start_server, tmp_path):
    path = tmp_path / "model.kvcorrection"
    questions = json.loads(SAMPLE.read_text())[:5]
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for number, file in enumerate(files):
        file.write_text(json.dumps(questions[number::2]))
    done = run("kvblend", "calibrate", "--model", MODEL, "--data", *files, "--n", "3", "--passages", "2,3",
               "--held-out", "0.4", "--attention-passes", "3", "--output", path, "--json", "--max-context-tokens", "4096")
    assert done.returncode == 0, done.stderr
    learned = json.loads(done.stdout)
    assert (learned["fitted_prompts"], learned["held_out_prompts"]) == (3, 2)
    assert learned["kl_after"] < learned["kl_before"]  # 0.04 and 0.15
    assert sum(learned["residual"]) < 0.9 * len(learned["residual"])
    assert len(learned["ranks"]) == len(learned["residual"]) - 1 and all(0 <= rank <= 16 for rank in learned["ranks"])
    assert learned["key_strength"] in (1, 0.85, 0.7, 0.55)

    server = start_server(*FLAGS, "--correction", path)
    server.put()
    _, full = server.ask(reuse="REUSE_NOTHING")
    reports, distances = {}, {}
    for correction in (False, True):
        reports[correction], scores = server.ask(policy="POLICY_NONE", correction=correction)
        distances[correction] = sum(abs(a - b) for a, b in zip(scores, full))
    assert reports[False].correction == "" and reports[True].correction == learned["version"]
    assert reports[True].reused_tokens == reports[False].reused_tokens > 0
    assert distances[True] != distances[False]
    report, _ = server.ask(CHUNKS[:1], policy="POLICY_NONE")
    assert report.correction == "" and report.reused_tokens == 0  # the first chunk is exact
    assert server.stop() == 0

    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    refusal = run("kvblend-server", "--model", MODEL, "--correction", path, *FLAGS)
    assert refusal.returncode != 0
    assert str(path) in refusal.stderr and "checksum" in refusal.stderr


def test_documents_will_do(tmp_path):
    path, corpus = tmp_path / "model.kvcorrection", tmp_path / "corpus"
    corpus.mkdir()
    for number, question in enumerate(json.loads(SAMPLE.read_text())):
        (corpus / f"{number}.txt").write_text("\n\n".join(passage["text"] for passage in question["ctxs"]))
    arguments = ["calibrate", "--model", MODEL, "--corpus", corpus, "--output", path]
    done = run("kvblend", *arguments, "--n", "6", "--passages", "3", "--json")
    assert done.returncode == 0, done.stderr
    learned = json.loads(done.stdout)
    assert (learned["fitted_prompts"], learned["held_out_prompts"]) == (4, 2)
    assert learned["kl_after"] < learned["kl_before"] and not learned["by_attention"]
    assert done.stderr.startswith("Calibrate 0/8  pairs to fit\n")  # a log shows that it goes on
    assert run("kvblend", "info", "--model", MODEL, "--correction", path).returncode == 0


    # What cannot be read is named, and left out.
    (corpus / "empty.md").write_text("")
    (corpus / "binary.txt").write_bytes(b"\xff\xfe\x00")
    again = run("kvblend", *arguments, "--n", "6", "--passages", "3", "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["version"] == learned["version"]
    for name in ("empty.md: is empty", "binary.txt: is binary"):
        assert str(corpus / name.split(":")[0]) + name[name.index(":"):] in again.stderr
    for file in corpus.glob("[0-9]*.txt"):
        file.unlink()
    nothing = run("kvblend", *arguments)
    assert nothing.returncode != 0 and "there is no document that can be used" in nothing.stderr


def test_questions_that_are_too_long_are_left_out_and_wrong_ones_named(tmp_path):
    data = tmp_path / "data.json"
    questions = json.loads(SAMPLE.read_text())[:5]
    questions[2]["ctxs"][1]["text"] *= 100
    arguments = ["calibrate", "--model", MODEL, "--data", data, "--passages", "2", "--attention-passes", "0",
                 "--max-context-tokens", "2048"]
    data.write_text(json.dumps(questions))
    done = run("kvblend", *arguments, "--output", tmp_path / "with", "--json")
    report = json.loads(done.stdout)
    assert report["left_out_prompts"] == 1 and report["fitted_prompts"] + report["held_out_prompts"] == 4
    assert f"1 of 5 prompts are too long and left out, first {data}, question 2: " in done.stderr
    del questions[2]
    data.write_text(json.dumps(questions))
    done = run("kvblend", *arguments, "--output", tmp_path / "without", "--json")
    assert json.loads(done.stdout)["kl_after"] == report["kl_after"]

    for question in questions[:3]:
        question["ctxs"][0]["text"] *= 100
    data.write_text(json.dumps(questions))
    done = run("kvblend", *arguments, "--output", tmp_path / "out")
    assert done.returncode != 0 and f"3 of 4 prompts are too long and left out, first {data}, question 0: " in done.stderr
    questions[1]["ctxs"] = questions[1]["ctxs"][:1]
    data.write_text(json.dumps(questions))
    done = run("kvblend", *arguments, "--output", tmp_path / "out")
    assert done.returncode != 0 and f"{data}, question 1 has 1 chunks; allowed: at least 2" in done.stderr


def test_a_calibration_that_is_killed_goes_on(tmp_path):
    whole, resumed, moments = tmp_path / "whole", tmp_path / "resumed", tmp_path / "moments"
    arguments = ["calibrate", "--model", MODEL, "--data", SAMPLE, "--passages", "2", "--held-out", "0.2",
                 "--attention-passes", "1"]
    assert run("kvblend", *arguments, "--n", "5", "--output", whole).returncode == 0
    assert not moments.exists()

    command = [BIN_DIR / "kvblend", *arguments, "--n", "5", "--output", resumed, "--resume", moments]
    steps = moments.with_name("moments.attention")
    for kept, what in ((moments, "the moments of four prompts"), (steps, "four steps on what attention reads")):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT) as process:
            wait_until(lambda kept=kept, process=process: kept.exists() or process.poll() is not None, what)
            process.kill()
        assert kept.exists()
    assert not resumed.exists()
    done = run("kvblend", *arguments, "--n", "5", "--output", resumed, "--resume", moments)
    assert done.returncode == 0, done.stderr
    assert resumed.read_bytes() == whole.read_bytes()

    steps.write_bytes(steps.read_bytes()[:-1])
    refusal = run("kvblend", *arguments, "--n", "5", "--output", resumed, "--resume", moments)
    assert refusal.returncode != 0
    assert str(steps) in refusal.stderr and "damaged" in refusal.stderr

    refusal = run("kvblend", *arguments, "--n", "4", "--output", resumed, "--resume", moments)
    assert refusal.returncode != 0
    assert str(moments) in refusal.stderr and "of other prompts" in refusal.stderr


def test_a_better_correction_is_not_replaced_unless_asked(tmp_path):
    path, reports = tmp_path / "model.kvcorrection", {}

    def calibrate(rank, output, *flags):
        done = run("kvblend", "calibrate", "--model", MODEL, "--data", SAMPLE, "--passages", "2", "--attention-passes", "0",
                   "--resume", tmp_path / "moments", "--rank", rank, "--output", output, "--json", *flags)
        return done, json.loads(done.stdout)

    for rank in ("0", "16"):
        done, reports[rank] = calibrate(rank, tmp_path / rank)
        assert done.returncode == 0 and reports[rank]["kl_there"] is None, done.stderr
    better, worse = sorted(reports, key=lambda rank: reports[rank]["kl_after"])
    path.write_bytes((tmp_path / better).read_bytes())
    done, report = calibrate(worse, path)
    assert done.returncode != 0 and f"{path} leaves less divergence" in done.stderr and "--force replaces it" in done.stderr
    assert report["kl_there"] == reports[better]["kl_after"] < report["kl_after"] and not report["version"]
    assert path.read_bytes() == (tmp_path / better).read_bytes()
    done, report = calibrate(worse, path, "--force")
    assert done.returncode == 0 and report["version"] == reports[worse]["version"]
    done, report = calibrate(better, path)
    assert done.returncode == 0 and report["version"] == reports[better]["version"]


def test_too_little_to_learn_from_is_refused(tmp_path):
    data, output = tmp_path / "data.json", tmp_path / "out"
    questions = json.loads(SAMPLE.read_text())[:3]
    for question in questions:
        question["ctxs"] = [question["ctxs"][0], {"title": "", "text": "A few."}]
    data.write_text(json.dumps(questions))
    done = run("kvblend", "calibrate", "--model", MODEL, "--data", data, "--output", output)
    assert done.returncode != 0
    assert "tokens behind other chunks; allowed: at least 384, one for each channel" in done.stderr
    questions[1]["ctxs"][1]["text"] = " \n"
    data.write_text(json.dumps(questions))
    done = run("kvblend", "calibrate", "--model", MODEL, "--data", data, "--output", output)
    assert done.returncode != 0 and f"{data}, question 1: chunk 1 is empty; allowed: some text" in done.stderr
    assert not output.exists()


def test_a_save_that_fails_does_not_end_the_work(tmp_path):
    whole, output, moments = tmp_path / "whole", tmp_path / "output", tmp_path / "moments"
    arguments = ["calibrate", "--model", MODEL, "--data", SAMPLE, "--passages", "2", "--n", "6", "--attention-passes", "0"]
    assert run("kvblend", *arguments, "--output", whole).returncode == 0

    # As a full disk: the correction still has room. The limits are set behind exec, as a fork of a process that has
    # used gRPC may not come that far.
    with_small_files = ["env", "--ignore-signal=XFSZ", "prlimit", f"--fsize={16 << 20}"]
    done = subprocess.run([*with_small_files, BIN_DIR / "kvblend", *arguments, "--output", output, "--resume", moments],
                          env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.stderr.count("what was computed so far is not saved") == 1  # after the fourth prompt
    assert "written" in done.stdout and output.read_bytes() == whole.read_bytes()
    assert done.returncode != 0 and str(moments) in done.stderr.splitlines()[-1]  # the last save is what it was asked for
    assert not moments.exists()


def test_what_cannot_be_written_is_known_before_the_work(tmp_path):
    notes, moments = tmp_path / "notes.txt", tmp_path / "moments"
    notes.write_text("not to be lost")
    for output, resume, message in ((tmp_path / "no/out", moments, "no/out.part"),
                                    (notes, moments, "notes.txt is something else than a learned correction"),
                                    (tmp_path / "out", tmp_path / "no/moments", "no/moments.part"),
                                    (moments, moments, "are one file"),
                                    (moments, f"{tmp_path}/./moments", "are one file"),
                                    (moments.with_name("moments.attention"), moments, "are one file")):
        done = run("kvblend", "calibrate", "--model", MODEL, "--data", SAMPLE, "--output", output, "--resume", resume)
        assert done.returncode != 0
        assert message in done.stderr and "Calibrate 0/" not in done.stderr
    assert notes.read_text() == "not to be lost"
    assert list(tmp_path.iterdir()) == [notes]


@pytest.mark.parametrize("arguments, message", [
    ([], "calibrate needs either --data or --corpus"),
    (["--data", SAMPLE, "--corpus", ROOT / "docs"], "calibrate needs either --data or --corpus"),
    (["--data", SAMPLE, "--attention-passes", "-2"], "attention-passes is -2; allowed: -1 to 1000"),
    (["--data", SAMPLE, "--passages", "2,3"], "--passages has 2 numbers; allowed: one, or one for each of the 1 files"),
    (["--corpus", ROOT / "docs", "--passages", "2,3"], "several numbers are for the files of --data; a corpus has one"),
    (["--corpus", ROOT / "docs", "--first", "3"], "--first is for the questions of --data"),
    (["--corpus", ROOT / "no-such-folder"], "no-such-folder"),
    (["--corpus", ROOT / "proto/kvblend/v1"], "there is no .txt, .md or .jsonl file"),
    (["--corpus", ROOT / "CONTRIBUTING.md", "--passages", "1000"], "at least 2000, two prompts of 1000"),
])
def test_bad_arguments_are_named(arguments, message, tmp_path):
    done = run("kvblend", "calibrate", "--model", MODEL, "--output", tmp_path / "out", *arguments)
    assert done.returncode != 0
    assert message in done.stderr
