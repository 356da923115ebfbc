"""`kvblend model inspect` tells of a model what a server that loads it tells, and of others why they do not run."""
import json
import shutil

import pytest

from conftest import MODEL, ROOT, run


def test_the_packaged_model():
    done = run("kvblend", "model", "inspect", MODEL, "--context", "4096", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    info = run("kvblend", "info", "--model", MODEL, "--json", "--max-context-tokens", "512")
    assert info.returncode == 0, info.stderr
    assert report["fingerprint"] in info.stdout
    assert report["runs"] is True and report["reason"] == ""
    assert report["chat_format"] == "chatml"
    assert "chat template: yes, format: chatml" in run("kvblend", "model", "inspect", MODEL).stdout
    other = run("kvblend", "model", "inspect", MODEL, "--chat-format", "llama3")
    assert other.returncode == 2 and "the vocabulary lacks it" in other.stderr
    assert report["parameters"] == 134_515_008 and report["layers"] == 30
    assert report["kv_bytes"] == 4096 * report["kv_bytes_per_token"] == 4096 * 2 * 30 * 3 * 64 * 2
    assert sum(kind["bytes"] for kind in report["tensor_types"]) < MODEL.stat().st_size


def test_a_folder(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "tests/fixtures/hf/llama", folder)
    done = run("kvblend", "model", "inspect", folder, "--json")
    report = json.loads(done.stdout)
    assert report["architecture"] == "llama" and report["tokenizer"] == "tokenizer.json"
    assert [kind["type"] for kind in report["tensor_types"]] == ["BF16", "F32"]
    (folder / "config.json").write_text((folder / "config.json").read_text().replace("silu", "relu"))
    done = run("kvblend", "model", "inspect", folder)
    assert done.returncode == 1
    assert "field 'hidden_act' is \"relu\"; allowed: silu" in done.stderr


@pytest.mark.parametrize("content, code", [(None, 3), (b"", 5), (b"GGUF\x03\0\0\0\x01", 5), (b"something else", 2)])
def test_what_is_no_model(tmp_path, content, code):
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    done = run("kvblend", "model", "inspect", path)
    assert done.returncode == code, done.stderr
    assert str(path) in done.stderr
