"""The programs of the wheel, `kvblend serve` first of all."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

import kvblend
from kvblend import serve
from kvblend.programs import path_of

from conftest import ENVIRONMENT, FLAGS, MODEL, wait_until

KVBLEND = Path(sys.executable).parent / "kvblend"


class Serving:
    """kvblend serve with a home of its own."""

    def __init__(self, home, *arguments):
        self.out = home / "out"
        with open(self.out, "wb") as out, open(home / "log", "wb") as log:
            self.process = subprocess.Popen([KVBLEND, "serve", "--model", MODEL, *FLAGS, *arguments], stdout=out, stderr=log,
                                            env=ENVIRONMENT | {"HOME": str(home)} | {"XDG_STATE_HOME": str(home / "state")})

        def told():
            assert self.process.poll() is None, (home / "log").read_text()
            return "URL" in self.out.read_text()
        wait_until(told, "the URL")
        self.text = wait_until(lambda: self.out.read_text() if "max_tokens" in self.out.read_text() else "", "the whole text")
        self.url = re.search(r"^URL +(\S+)$", self.text, re.MULTILINE).group(1)
        key = re.search(r"^key +(\S+)$", self.text, re.MULTILINE)
        self.key = key and key.group(1)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


def test_serve_tells_where_it_is_and_the_line_of_curl_works(tmp_path):
    serving = Serving(tmp_path)
    try:
        with kvblend.HttpClient(serving.url) as stranger, pytest.raises(kvblend.Error) as caught:
            stranger.models()
        assert caught.value.code == "UNAUTHENTICATED"
        with kvblend.HttpClient(serving.url, api_key=serving.key) as client:
            assert len(client.models()) == 1
        curl = serving.text[serving.text.index("curl "):]
        answer = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True, timeout=300)
        assert json.loads(answer.stdout)["choices"][0]["message"]["content"]
    finally:
        assert serving.stop() == 0, "SIGTERM drains"
    key_file = tmp_path / "state/kvblend/api-key"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    again = Serving(tmp_path)
    assert again.key == serving.key
    assert again.stop() == 0


def server_of(serving):
    """The process that kvblend serve has started."""
    (child,) = Path(f"/proc/{serving.process.pid}/task/{serving.process.pid}/children").read_text().split()
    return int(child)


def is_running(process):
    """Whoever has ended and was not waited for yet has no command line."""
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.fixture(name="heard")
def heard_fixture():
    """These signals are not ignored, as they may be where the tests themselves run: under nohup, or in the background."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGQUIT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL])
def test_no_server_is_left_behind(tmp_path, number):
    """Neither by a terminal that is closed, nor where there was no time to pass a signal on."""
    serving = Serving(tmp_path, "--allow-unauthenticated")
    server = server_of(serving)
    try:
        assert is_running(server)
        serving.process.send_signal(number)
        ended = serving.process.wait(120)
        if number != signal.SIGKILL:
            assert ended == 0 and not is_running(server), "it drains"
        wait_until(lambda: not is_running(server), "the server ends")
    finally:
        if is_running(server):
            os.kill(server, signal.SIGKILL)


@pytest.mark.usefixtures("heard")
def test_a_signal_that_comes_while_the_server_is_started_is_passed_on(monkeypatch):
    passed = []
    monkeypatch.setattr(signal, "signal", lambda number, handler: handlers.update({number: handler}))
    handlers = {}
    signals = serve._PassedOn()  # pylint: disable=protected-access
    handlers[signal.SIGHUP](signal.SIGHUP, None)
    signals.to(types.SimpleNamespace(send_signal=passed.append))
    handlers[signal.SIGINT](signal.SIGINT, None)
    assert passed == [signal.SIGTERM, signal.SIGINT]


def test_nohup_is_heard():
    """SIGHUP is ignored then, and goes on to be."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        serve._PassedOn()  # pylint: disable=protected-access
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert callable(signal.getsignal(signal.SIGQUIT))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_two_that_start_for_the_first_time_have_one_key(tmp_path, monkeypatch):
    """The second asks while the first makes the key."""
    made, found = [], []
    second = threading.Thread(target=lambda: found.append(serve.find_key(tmp_path)[0]))

    def make(*_, **__):
        made.append(f"key{len(made)}")
        key = made[-1]
        if len(made) == 1:
            second.start()
            second.join(1)  # one that does not wait for the first is done by then
        return types.SimpleNamespace(stdout=f"{key}\nline of {key}\n")
    monkeypatch.setattr(serve.subprocess, "run", make)
    found.append(serve.find_key(tmp_path)[0])
    second.join()
    assert found == ["key0", "key0"] and made == ["key0"]
    assert (tmp_path / "api-keys.jsonl").read_text() == "line of key0\n"
    assert stat.S_IMODE((tmp_path / ".lock").stat().st_mode) == 0o600


def test_a_key_whose_line_is_gone_is_made_anew(tmp_path, monkeypatch):
    """And is not there while the new line is and the new key not yet."""
    (tmp_path / "api-key").write_text("old\n")
    monkeypatch.setattr(serve.subprocess, "run", lambda *_, **__: types.SimpleNamespace(stdout="new\nline of new\n"))
    rename, seen = Path.rename, []

    def renamed(self, target):
        rename(self, target)
        seen.append((target.name, (tmp_path / "api-key").exists()))
    monkeypatch.setattr(Path, "rename", renamed)
    assert serve.find_key(tmp_path)[0] == "new"
    assert seen == [("api-keys.jsonl", False), ("api-key", True)]


def test_own_keys_are_left_alone(tmp_path):
    serving = Serving(tmp_path, "--allow-unauthenticated")
    with kvblend.HttpClient(serving.url) as client:
        assert len(client.models()) == 1
    assert serving.key is None and not (tmp_path / "state").exists()
    assert serving.stop() == 0


@pytest.mark.parametrize("arguments, said", [(("--model", "no-such-model"), "there is no model 'no-such-model'"),
                                             (("--model", str(MODEL), "--ratio", "7"), "ratio is 7")])
def test_what_is_wrong_ends_it_with_one_line(tmp_path, arguments, said):
    done = subprocess.run([KVBLEND, "serve", *arguments], capture_output=True, text=True, check=False, timeout=300,
                          env=ENVIRONMENT | {"HOME": str(tmp_path)})
    assert done.returncode != 0 and said in done.stderr, done.stderr


def test_a_model_that_cannot_be_fetched_is_not_called_unknown(tmp_path):
    done = subprocess.run([KVBLEND, "serve", "--model", "smollm2", "--model-dir", str(tmp_path / "models")], capture_output=True,
                          text=True, check=False, timeout=300,
                          env=ENVIRONMENT | {"HOME": str(tmp_path), "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"})
    assert done.returncode == 1 and "there is no model" not in done.stderr, done.stderr
    assert f"could not fetch the model 'smollm2' into {tmp_path / 'models'}" in done.stderr.splitlines()[-1]


def test_a_folder_that_cannot_hold_the_key_is_named(tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file/state"
    done = subprocess.run([KVBLEND, "serve", "--model", str(MODEL), "--state-dir", str(folder)], capture_output=True, text=True,
                          check=False, timeout=300, env=ENVIRONMENT)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith(f"kvblend serve: cannot keep a key in --state-dir {folder}: Not a directory; allowed: ")


@pytest.fixture(name="homeless")
def homeless_fixture(monkeypatch):
    """No HOME, and a user that the system knows nothing of, as containers run under; what would be started stands in the list."""
    def home():
        raise RuntimeError("Could not determine home directory.")
    started = []
    monkeypatch.setattr(Path, "home", home)
    for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "KVBLEND_MODEL", "KVBLEND_CONFIG", "KVBLEND_API_KEYS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(serve, "run", lambda command, *_: started.append(command) or 0)
    return started


def test_without_a_home_help_is_shown(homeless, capsys):
    with pytest.raises(SystemExit) as caught:
        serve.main(["--help"])
    assert caught.value.code == 0 and "--state-dir DIR" in capsys.readouterr().out and not homeless


@pytest.mark.parametrize("arguments, flag", [(["--model", str(MODEL)], "--state-dir"), (["--allow-unauthenticated"], "--model-dir")])
def test_without_a_home_the_flag_that_is_missing_is_named(homeless, capsys, arguments, flag):
    assert serve.main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"kvblend serve: this user has no home folder; give {flag} DIR, or set XDG_") and error.count("\n") == 1
    assert not homeless


def test_without_a_home_folders_that_are_given_do(homeless, tmp_path):
    assert serve.main(["--model", str(MODEL), "--state-dir", str(tmp_path)]) == 0
    assert serve.main(["--model", str(MODEL), "--allow-unauthenticated"]) == 0
    assert len(homeless) == 2 and (tmp_path / "api-key").exists()


def test_an_interrupted_download_ends_without_a_traceback(tmp_path, monkeypatch, capfd):
    def interrupt(*_):
        raise KeyboardInterrupt
    monkeypatch.setattr(serve, "find_model", interrupt)
    assert serve.main(["--model", "smollm2"]) == 130
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("flag, in_file, variable, served", [
    ("", "", "/no/such/variable", "/no/such/variable"), ("", "/no/such/file", "/no/such/variable", "/no/such/file"),
    ("/no/such/flag", "/no/such/file", "/no/such/variable", "/no/such/flag")])
def test_the_model_is_where_the_server_would_look_for_it(tmp_path, flag, in_file, variable, served):
    """Flag, file, variable, in this order (docs/operator-guide.md)."""
    settings = tmp_path / "server.conf"
    settings.write_text("# model=/no/such/comment\nthreads=1\n" + (f"model = {in_file}\n" if in_file else ""))
    arguments = ["--config", str(settings), "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--api-address",
                 "127.0.0.1:0", *(["--model", flag] if flag else [])]
    done = subprocess.run([KVBLEND, "serve", *arguments], capture_output=True, text=True, check=False, timeout=300,
                          env=ENVIRONMENT | {"HOME": str(tmp_path), "KVBLEND_MODEL": variable})
    assert done.returncode != 0 and f"cannot open model file {served}" in done.stderr, done.stderr


def test_settings_are_where_the_server_would_look_for_them(tmp_path, monkeypatch):
    """Flag, file, variable: else readiness is looked for where nobody answers, and a server that answers is ended for it."""
    settings = tmp_path / "server.conf"
    settings.write_text("# http-address=127.0.0.9:9\nhttp-address = \"127.0.0.2:1\"  # operators\ntls-certificate='a b.pem'\n"
                        "grpc-address=127.0.0.3:3\n")
    monkeypatch.setenv("KVBLEND_HTTP_ADDRESS", "127.0.0.4:4")
    monkeypatch.setenv("KVBLEND_API_ADDRESS", "127.0.0.5:5")
    flags = ["--config", str(settings), "--grpc-address=127.0.0.6:6"]
    found = {name: serve.value_of(flags, name, "none") for name in ("http-address", "tls-certificate", "grpc-address", "api-address")}
    assert found == {"http-address": "127.0.0.2:1", "tls-certificate": "a b.pem", "grpc-address": "127.0.0.6:6",
                     "api-address": "127.0.0.5:5"}
    for config in (tmp_path / "none", tmp_path, "/dev/null"):
        assert serve.value_of(["--config", str(config)], "http-address", "none") == "127.0.0.4:4"


def test_readiness_is_asked_without_a_proxy(server):
    """Of a proxy of the environment, 127.0.0.1 would be another machine."""
    code = f"from kvblend import serve; assert serve._is_ready('127.0.0.1', '{server.ports['http']}')"
    variables = {name: "http://127.0.0.1:1" for name in ("http_proxy", "HTTP_PROXY", "all_proxy")}
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT | variables | {"no_proxy": "", "NO_PROXY": ""})


def test_without_a_word_the_default_model_is_served(monkeypatch):
    monkeypatch.delenv("KVBLEND_MODEL", raising=False)
    monkeypatch.delenv("KVBLEND_CONFIG", raising=False)
    assert serve.model_of(*serve.parse(["--threads", "1"])) == serve.DEFAULT_MODEL


def test_a_switch_that_is_off_decides_nothing(monkeypatch):
    name = "allow-unauthenticated"
    monkeypatch.delenv("KVBLEND_ALLOW_UNAUTHENTICATED", raising=False)
    assert serve.is_set([f"--{name}"], name) and not serve.is_set([f"--{name}=false"], name) and not serve.is_set([], name)
    for value, expected in {"true": True, "1": True, "on": True, "false": False, "0": False, "No": False, "": False}.items():
        monkeypatch.setenv("KVBLEND_ALLOW_UNAUTHENTICATED", value)
        assert serve.is_set([], name) == expected, value


def test_other_commands_are_the_packaged_program(server):
    done = subprocess.run([KVBLEND, "health", "--server", server.target], capture_output=True, text=True, check=False,
                          env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([KVBLEND, "health", "--server", "127.0.0.1:1"], capture_output=True, check=False,
                          env=ENVIRONMENT).returncode == 4
    assert "kvblend serve" in subprocess.run([KVBLEND, "--help"], capture_output=True, text=True, check=True,
                                             env=ENVIRONMENT).stdout


def test_programs_take_their_libraries_from_the_wheel():
    """All but the C library's: nothing else of this machine is asked."""
    for name in ("kvblend", "kvblend-server"):
        path = path_of(name)
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for library, where in re.findall(r"(\S+) => (\S+)", listed):
            if not re.match(r"(libc|libm|libdl|libpthread|librt|libresolv)\.so", library):
                assert "/kvblend/native/" in os.path.realpath(where), f"{library} is {where}"


@pytest.mark.parametrize("address, host", [("127.0.0.1:8000", "127.0.0.1"), ("0.0.0.0:8000", "127.0.0.1"),
                                           ("[::]:0", "127.0.0.1"), ("example.org:80", "example.org")])
def test_hosts_of_addresses(address, host):
    assert serve.host_of(address) == host


@pytest.mark.parametrize("address, told", [("unix:/run/kvblend/socket", "unix:/run/kvblend/socket"),
                                           ("0.0.0.0:0", "127.0.0.1:50061")])
def test_grpc_is_told_as_clients_take_it(address, told):
    port = "0" if address.startswith("unix:") else "50061"
    text = serve.welcome({"grpc": port, "http": "1", "api": "2"}, ["--grpc-address", address], None)
    assert f"gRPC     {told}\n" in text


def test_with_a_certificate_it_speaks_tls(tmp_path):
    certificate, private_key = tmp_path / "server.pem", tmp_path / "server.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=IP:127.0.0.1", "-out", certificate, "-keyout", private_key], check=True, capture_output=True)
    serving = Serving(tmp_path, "--tls-certificate", str(certificate), "--tls-key", str(private_key))
    assert serving.url.startswith("https://")
    with kvblend.HttpClient(serving.url, api_key=serving.key, certificate_authorities=certificate) as client:
        assert len(client.models()) == 1
        assert not client.info().totals_left_out, "whose machine it is may see all of it"
    grpc = re.search(r"^gRPC +(\S+)$", serving.text, re.MULTILINE).group(1)
    with kvblend.GrpcClient(grpc, api_key=serving.key, certificate_authorities=certificate) as client:
        assert client.info().model.name
    curl = serving.text[serving.text.index("curl "):]
    assert b"choices" in subprocess.run(["bash", "-c", curl], capture_output=True, check=True, timeout=300).stdout
    assert serving.stop() == 0
