"""Starts an image's command and asks it: ask_image.py IMAGE.json ROOT MODEL

IMAGE.json is what `buildah inspect` says of the image, ROOT the folder where its files are mounted, MODEL a file to serve. Runs as
root in namespaces of its own for network and mounts (tests/deploy/check_image.sh makes them), so that the ports of the image's
command are free and nothing stays mounted. The root becomes read-only, and the process has the image's user and environment.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

READY_SECONDS = 300
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def bring_loopback_up():
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)


class Image:
    def __init__(self, description, root, model):
        config = description["OCIv1"]["config"]
        self.root = root
        self.environment = dict(entry.split("=", 1) for entry in config["Env"])
        self.user = config["User"]
        self.command = config["Entrypoint"] + config["Cmd"]
        self.health_command = description["Docker"]["config"]["Healthcheck"]["Test"]
        self.stop_signal = config["StopSignal"]
        served = self.command[self.command.index("--model") + 1]
        mount("--make-rprivate", "/")
        mount("--bind", root, root)
        os.makedirs(os.path.dirname(f"{root}{served}"), exist_ok=True)
        with open(f"{root}{served}", "wb"):
            pass
        mount("--bind", "-o", "ro", model, f"{root}{served}")
        os.makedirs(f"{root}/proc", exist_ok=True)
        mount("-t", "proc", "proc", f"{root}/proc")
        mount("-o", "remount,bind,ro", root)
        try:
            open(f"{root}/written", "wb").close()
        except OSError:
            return
        raise AssertionError("the root can be written")

    def start(self, command, **options):
        # The program is found as the container's engine finds it; chroot becomes it, so signals reach it.
        return subprocess.Popen([shutil.which("chroot"), f"--userspec={self.user}", self.root, *command], env=self.environment, **options)


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def chat(max_tokens, stream=False, **fields):
    body = {"messages": [{"role": "user", "content": "What is the capital of Norway?"}], "temperature": 0, "stream": stream,
            "documents": [{"title": "Oslo", "text": "Oslo is the capital of Norway."}], "max_tokens": max_tokens, **fields}
    request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", data=json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=300)


class Stream:
    """A long answer, which has begun and is read on beside what else happens."""

    def __init__(self):
        self.lines, self.begun = [], threading.Event()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        assert self.begun.wait(300), "no stream"

    def _read(self):
        with chat(200, stream=True, ignore_eos=True) as response:
            for line in response:
                self.lines.append(line)
                if b"content" in line:
                    self.begun.set()

    def wait_for_end(self):
        self.reader.join(300)
        assert self.lines and self.lines[-2].strip() == b"data: [DONE]", "the stream was cut off"


def main(description_path, root, model):
    with open(description_path, encoding="utf-8") as file:
        image = Image(json.load(file), root, model)
    bring_loopback_up()
    assert image.user.split(":")[0] not in ("", "0", "root"), f"the image's user is '{image.user}'"
    server = image.start(image.command)
    try:
        end = time.monotonic() + READY_SECONDS
        while get("http://127.0.0.1:8090/readyz") != 200:
            assert server.poll() is None and time.monotonic() < end, "the server is not ready"
            time.sleep(0.1)
        print("ready as user", image.user)
        assert image.health_command[0] == "CMD", image.health_command
        assert image.start(image.health_command[1:], stdout=subprocess.DEVNULL).wait(60) == 0, "the health check fails"
        generate = image.start(["kvblend", "generate", "--server", "127.0.0.1:50051", "--chunk", "Oslo is the capital of Norway. ",
                                "--question", "What is the capital of Norway?", "--max-tokens", "16"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        answer = generate.communicate(timeout=300)[0].strip()
        assert generate.returncode == 0 and answer, "no answer over gRPC"
        print("over gRPC:", answer)
        with chat(16) as response:
            answer = json.load(response)["choices"][0]["message"]["content"]
        assert answer, "no answer over HTTP"
        print("over HTTP:", answer)

        # Stopped in the middle of an answer, the server finishes it and takes no other.
        stream = Stream()
        server.send_signal(getattr(signal, image.stop_signal))
        while get("http://127.0.0.1:8090/readyz") == 200:
            time.sleep(0.01)
        stream.wait_for_end()
        code = server.wait(60)
        assert code == 0, f"the server ended with {code}"
        print("drained: the stream came to its end")
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
