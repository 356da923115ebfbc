"""The container is built by the scripts that quickstart.sh runs, its runtime packages hold every library that the
binaries need, and the flags that it and the systemd unit pass exist. No container engine is needed."""

import http.server
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from project import BIN, ROOT, output_of, read, run

MODEL = os.environ.get("KVBLEND_MODEL", os.path.join(ROOT, "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
BINARIES = ("kvblend-server", "kvblend")


def dockerfile_stages():
    """[[(instruction, arguments)...] per stage], continued lines joined, comments dropped."""
    lines = [line for line in read("deploy/docker/Dockerfile").splitlines() if not line.lstrip().startswith("#")]
    stages = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        instruction, arguments = line.split(None, 1)
        if instruction == "FROM":
            stages.append([])
        elif not stages:
            continue  # an ARG for FROM
        stages[-1].append((instruction, arguments.strip()))
    return stages


def arguments_of(stage, instruction):
    return [arguments for name, arguments in stage if name == instruction]


class BuildStageTest(unittest.TestCase):
    def setUp(self):
        self.build, self.final = dockerfile_stages()

    def test_build_steps_are_those_of_quickstart(self):
        quickstart = read("deploy/quickstart.sh")
        steps = []
        for command in arguments_of(self.build, "RUN"):
            steps += re.findall(r"\./deploy/(?!docker/)[^;&|]*", command)
        steps = [step.strip() for step in steps]
        self.assertEqual(["./deploy/install_dependencies.sh", "./deploy/build.sh release kvblend-server kvblend",
                          "./deploy/fetch_model.sh"], steps)
        in_quickstart = [re.search(r"\./deploy/.*$", line).group().strip() for line in quickstart.splitlines()
                         if line.lstrip().startswith(("logged ", "! $install || logged "))]
        # quickstart may be asked for another model; the image has the default one.
        self.assertEqual(steps, [step.replace(' "$model_name"', "") for step in in_quickstart])

    def test_gpu_kernels_are_built_on_demand_only(self):
        self.assertEqual("KVBLEND_CUDA=0", [argument for argument in arguments_of(self.build, "ARG") if "CUDA" in argument][0])
        for command in arguments_of(self.build, "RUN"):
            if "cuda" in command.lower():
                self.assertTrue(command.startswith('if [ "$KVBLEND_CUDA" = 1 ]; then '), command)

    def test_every_run_step_is_valid_shell(self):
        for stage in (self.build, self.final):
            for command in arguments_of(stage, "RUN"):
                subprocess.run(["sh", "-n", "-c", command], check=True)

    def test_copied_files_exist(self):
        for stage in (self.build, self.final):
            for arguments in arguments_of(stage, "COPY"):
                words = shlex.split(arguments)
                if words[0].startswith("--from="):
                    continue
                for source in words[:-1]:
                    self.assertTrue(os.path.exists(os.path.join(ROOT, source)), source)

    def test_build_output_stays_out_of_the_context(self):
        ignored = read(".dockerignore").split("\n")
        for name in ("build", "models", ".git"):
            self.assertIn(name, ignored)


class FinalStageTest(unittest.TestCase):
    def setUp(self):
        self.final = dockerfile_stages()[1]

    def test_it_runs_without_root_and_checks_its_health(self):
        (user,) = arguments_of(self.final, "USER")
        self.assertNotIn(user.split(":")[0], ("root", "0"))
        (health,) = arguments_of(self.final, "HEALTHCHECK")
        self.assertEqual(["container-health"], json.loads(health[health.index("CMD") + len("CMD"):]))
        collected = [command for command in arguments_of(dockerfile_stages()[0], "RUN") if "collect_files.sh" in command]
        self.assertIn("build/release/bin/container-health", collected[0].split())

    def test_it_has_nothing_but_what_was_collected(self):
        self.assertEqual([], arguments_of(self.final, "RUN"))
        copies = [shlex.split(arguments) for arguments in arguments_of(self.final, "COPY")]
        self.assertEqual([["--from=build", "/image/", "/"], ["--from=build", "/src/models/", "/models/"]], copies)

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to give a folder to another user")
    def test_collected_programs_find_their_libraries(self):
        """Every shared library that the loader wants is collected, under the name that it looks for."""
        with tempfile.TemporaryDirectory() as folder:
            output_of("deploy/docker/collect_files.sh", folder, *(os.path.join(BIN, name) for name in BINARIES))
            for binary in BINARIES:
                collected = os.path.join(folder, "usr/local/bin", binary)
                self.assertLessEqual(os.path.getsize(collected), os.path.getsize(os.path.join(BIN, binary)))
                listed = output_of("ldd", os.path.join(BIN, binary))
                for library in re.findall(r"(/\S+) \(0x", listed):
                    self.assertTrue(os.path.isfile(folder + library), library)
            self.assertTrue(os.access(os.path.join(folder, "lib64/ld-linux-x86-64.so.2"), os.X_OK))
            self.assertEqual("10001", read(os.path.join(folder, "etc/passwd")).splitlines()[1].split(":")[2])

    def test_the_binaries_accept_the_flags(self):
        (entrypoint,), (arguments,) = arguments_of(self.final, "ENTRYPOINT"), arguments_of(self.final, "CMD")
        self.assertEqual(["kvblend-server"], json.loads(entrypoint))
        help_text = output_of(os.path.join(BIN, "kvblend-server"), "--help")
        for word in json.loads(arguments):
            if word.startswith("--"):
                self.assertRegex(help_text, re.escape(word) + r"\b")


class Page(http.server.BaseHTTPRequestHandler):
    """Answers with server.status."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):  # noqa: N802
        self.send_response(self.server.status if self.path == "/readyz" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass


class HealthCheckTest(unittest.TestCase):
    """The program that the image asks for its health, built by the image's own step."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.program = os.path.join(cls.folder, "container-health")
        (step,) = [command for command in arguments_of(dockerfile_stages()[0], "RUN") if command.startswith("g++ ")]
        output_of(*shlex.split(step.replace("build/release/bin/container-health", cls.program)))
        cls.page = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        cls.port = cls.page.server_address[1]
        threading.Thread(target=cls.page.serve_forever, daemon=True).start()
        cls.addClassCleanup(cls.page.server_close)
        cls.addClassCleanup(cls.page.shutdown)

    def health(self, *command_line, variable=None):
        """Exit code of the check beside a server with this command line and KVBLEND_HTTP_ADDRESS."""
        path = os.path.join(self.folder, "cmdline")
        with open(path, "wb") as file:
            file.write(b"".join(word.encode() + b"\0" for word in command_line))
        environment = {"KVBLEND_HTTP_ADDRESS": variable} if variable else {}
        return subprocess.run([self.program, path], env=environment, capture_output=True, check=False, timeout=60).returncode

    def test_it_says_what_the_page_says(self):
        for status, code in ((200, 0), (503, 1), (404, 1)):
            self.page.status = status
            self.assertEqual(code, self.health("kvblend-server", "--http-address", f"127.0.0.1:{self.port}"), status)
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            self.assertEqual(1, self.health("kvblend-server", f"--http-address=127.0.0.1:{closed.getsockname()[1]}"))
        self.assertEqual(1, self.health("kvblend-server", "--http-address", "nonsense"))

    def test_it_finds_the_address(self):
        self.page.status = 200
        here, nowhere = f"0.0.0.0:{self.port}", "127.0.0.1:1"
        self.assertEqual(0, self.health("kvblend-server", "--model", "m", "--http-address", here, "--ratio", "0.1"))
        self.assertEqual(0, self.health("/sbin/docker-init", "--", "kvblend-server", f"--http-address={here}"))
        self.assertEqual(0, self.health("kvblend-server", "--model", "m", variable=here))
        self.assertEqual(0, self.health("kvblend-server", "--http-address", here, variable=nowhere))
        self.assertEqual(1, self.health("kvblend-server", "--http-address", nowhere, variable=here))
        # The page listens on IPv4 alone, as a server at [::] does where there is no IPv6.
        self.assertEqual(0, self.health("kvblend-server", "--http-address", f"[::]:{self.port}"))

    @unittest.skipUnless(os.path.isfile(MODEL), f"there is no {MODEL}; deploy/fetch_model.sh fetches it")
    def test_a_server_with_tls_on_other_ports_is_healthy(self):
        certificate, key = (os.path.join(self.folder, name) for name in ("server.pem", "server.key"))
        output_of("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=elsewhere", "-out",
                  certificate, "-keyout", key)
        ports = os.path.join(self.folder, "ports")
        command = [os.path.join(BIN, "kvblend-server"), "--model", MODEL, "--grpc-address", "127.0.0.1:0", "--http-address",
                   "127.0.0.1:0", "--api-address", "none", "--tls-certificate", certificate, "--tls-key", key, "--tls-client-ca",
                   certificate, "--max-context-tokens", "512", "--no-self-check", "--correction", "none", "--port-file", ports]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KVBLEND_")}
        server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 300
            while True:
                self.assertTrue(server.poll() is None and time.monotonic() < end, "the server is not healthy")
                if os.path.exists(ports):
                    with open(ports, encoding="utf-8") as file:
                        port = re.search(r"^http=(\d+)$", file.read(), re.MULTILINE)
                    if port and self.health("kvblend-server", variable=f"127.0.0.1:{port.group(1)}") == 0:
                        break
                time.sleep(0.05)
        finally:
            server.kill()
            server.wait()


class RuntimePackagesTest(unittest.TestCase):
    """Every shared library of the binaries belongs to a package of --runtime or to one that those depend on."""

    @classmethod
    def setUpClass(cls):
        names = output_of(os.path.join(ROOT, "deploy/install_dependencies.sh"), "--runtime", "--print").split()
        depends = output_of("apt-cache", "depends", "--recurse", "--installed", "--no-recommends", "--no-suggests",
                            "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances", *names)
        cls.closure = {line.split(":")[0] for line in depends.splitlines() if re.match(r"^[a-z0-9]", line)}

    def test_shared_libraries(self):
        for binary in BINARIES:
            libraries = re.findall(r"=> (/\S+)", output_of("ldd", os.path.join(BIN, binary)))
            self.assertTrue(libraries)
            packages = self.packages_of(libraries)
            for library in libraries:
                self.assertIn(packages[library], self.closure, f"{binary} needs {library}")

    def test_a_missing_package_is_noticed(self):
        self.assertNotIn(self.packages_of(["/usr/bin/cmake"])["/usr/bin/cmake"], self.closure)

    @staticmethod
    def packages_of(paths):
        """Path -> package that owns it."""
        # dpkg knows /lib and /usr/lib as the package names them; both are the same folder.
        names = {}
        for path in paths:
            real = os.path.realpath(path)
            for name in (path, real, path.removeprefix("/usr"), real.removeprefix("/usr")):
                names[name] = path
        # Names that dpkg doesn't know are complaints on stderr; each path has one that it knows.
        found = subprocess.run(["dpkg-query", "--search", *names], capture_output=True, text=True, check=False).stdout
        owners = {}
        for line in found.splitlines():
            packages, name = line.split(": ", 1)
            owners[names[name]] = packages.split(":")[0]
        unknown = set(paths) - set(owners)
        if unknown:
            raise AssertionError(f"no package owns {sorted(unknown)}")
        return owners


class SystemdUnitTest(unittest.TestCase):
    UNIT = "deploy/systemd/kvblend-server.service"

    def test_settings_exist(self):
        unit = read(self.UNIT)
        self.assertEqual(["kvblend-server"], re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE))
        help_text = output_of(os.path.join(BIN, "kvblend-server"), "--help")
        for variable in re.findall(r"^Environment=(\w+)=|\b(KVBLEND_[A-Z_]+)=", unit, re.MULTILINE):
            self.assertIn(f"(Env:{''.join(variable)})", help_text)

    def test_the_unit_is_hardened_and_outlasts_the_drain(self):
        unit = dict(re.findall(r"^(\w+)=(.*)$", read(self.UNIT), re.MULTILINE))
        for key, value in {"DynamicUser": "yes", "ProtectSystem": "strict", "NoNewPrivileges": "yes",
                           "CapabilityBoundingSet": "", "KillSignal": "SIGTERM"}.items():
            self.assertEqual(value, unit[key], key)
        help_text = output_of(os.path.join(BIN, "kvblend-server"), "--help")
        drain = re.search(r"--drain-timeout\b[^\n]*=(\d+)", help_text)
        self.assertIsNotNone(drain, "the help of --drain-timeout shows its default")
        self.assertGreater(int(unit["TimeoutStopSec"]), int(drain.group(1)))

    def test_what_somebody_must_change_is_not_tried_again(self):
        unit = dict(re.findall(r"^(\w+)=(.*)$", read(self.UNIT), re.MULTILINE))
        self.assertEqual("on-failure", unit["Restart"])
        done = run(os.path.join(BIN, "kvblend-server"), "--model", "model.gguf", "--ratio", "7")
        self.assertEqual(unit["RestartPreventExitStatus"].split(), [str(done.returncode)], done.stderr)

    def test_systemd_accepts_the_unit(self):
        analyze = shutil.which("systemd-analyze")
        if analyze is None:
            self.skipTest("no systemd-analyze, which the Debian package systemd has")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, os.path.basename(self.UNIT))
            with open(path, "w", encoding="utf-8") as file:
                file.write(read(self.UNIT).replace("ExecStart=kvblend-server", "ExecStart=true"))
            done = subprocess.run([analyze, "verify", "--man=no", path], capture_output=True, text=True, check=False)
            complaints = [line for line in done.stderr.splitlines() if os.path.basename(self.UNIT) in line]
            self.assertEqual([], complaints)
