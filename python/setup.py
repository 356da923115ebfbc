"""Makes the wheel: generates the messages from ../proto, and takes in the programs that deploy/build.sh has built.

KVBLEND_BIN_DIR is where they lie, ../build/release/bin by default. With KVBLEND_WHEEL=client there are none
in the wheel, which then is for any platform. There is no source distribution: the sources are the repository.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent.parent
BIN_DIR = Path(os.environ.get("KVBLEND_BIN_DIR", ROOT / "build/release/bin"))
KIND = os.environ.get("KVBLEND_WHEEL", "full")
PROGRAMS = ("kvblend", "kvblend-server")
# Every system has these, and they belong to its kernel and its own C library.
SYSTEM_LIBRARIES = re.compile(r"(ld-linux.*|linux-vdso|libc|libm|libdl|libpthread|librt|libresolv)\.so\.\d+$")

if not (ROOT / "CMakeLists.txt").is_file():
    sys.exit(f"there is no {ROOT / 'CMakeLists.txt'}: kvblend is built from its whole repository, by deploy/build_wheel.sh")
if KIND not in ("full", "client"):
    sys.exit(f"KVBLEND_WHEEL is '{KIND}'; allowed: full, client")


def version():
    """CMake's, the only place that has it."""
    return re.search(r"project\(kvblend VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")).group(1)


def libraries_of(program):
    """Name -> path of the shared libraries that a program needs of the system, itself and through others."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    if missing := re.findall(r"(\S+) => not found", listed):
        sys.exit(f"{program} needs {', '.join(missing)}, not found here")
    found = dict(re.findall(r"(\S+) => (/\S+)", listed))
    return {name: path for name, path in found.items() if not SYSTEM_LIBRARIES.match(name)}


def debian_packages(paths):
    """Path -> the Debian package that has installed it; without those that are of none, as all are on other
    systems."""
    if not shutil.which("dpkg-query"):
        return {}
    # A library is found in /lib and known in /usr/lib, or the other way round, and under its name without
    # links.
    spellings = {spelling: path for path in paths for real in (path, os.path.realpath(path))
                 for spelling in (real, real.removeprefix("/usr"), f"/usr{real}")}
    # Ends with 1 where it does not know all of them.
    listed = subprocess.run(["dpkg-query", "--search", *spellings], capture_output=True, text=True, check=False).stdout
    owners = re.findall(r"^([^:,\s]+)[^/\n]*: (/.*)$", listed, re.MULTILINE)
    return {spellings[found]: package for package, found in owners if found in spellings}


class BuildWithMessagesAndPrograms(build_py):
    def run(self):
        super().run()
        self.generate_messages()
        if KIND == "full":
            self.take_in_programs()

    def generate_messages(self):
        sources = sorted(str(path) for path in (ROOT / "proto").rglob("*.proto"))
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--python_out={self.build_lib}",
                        f"--pyi_out={self.build_lib}", f"--grpc_python_out={self.build_lib}", *sources], check=True)
        (Path(self.build_lib) / "kvblend/v1/__init__.py").write_text(
            '"""The messages and stubs of kvblend.v1, as generated from the proto files."""\n', encoding="utf-8")

    def take_in_programs(self):
        """Programs, their libraries, and the script of `kvblend model fetch`, laid out as an installation has them."""
        native = Path(self.build_lib) / "kvblend/native"
        shutil.rmtree(native, ignore_errors=True)
        for folder in ("bin", "lib", "share/kvblend"):
            (native / folder).mkdir(parents=True)
        libraries = {}
        for name in PROGRAMS:
            if not (BIN_DIR / name).is_file():
                sys.exit(f"there is no {BIN_DIR / name}; deploy/build.sh release makes it, KVBLEND_WHEEL=client does without")
            libraries.update(libraries_of(BIN_DIR / name))
            shutil.copy2(BIN_DIR / name, native / "bin")
        for name, path in libraries.items():
            shutil.copyfile(path, native / "lib" / name)
        self.take_in_licences(native / "share/doc", libraries)
        shutil.copy2(ROOT / "deploy/fetch_model.sh", native / "share/kvblend")
        # Each finds its libraries beside it, wherever the wheel is unpacked, and the environment has no say.
        subprocess.run(["patchelf", "--set-rpath", "$ORIGIN/../lib", *(native / "bin" / name for name in PROGRAMS)], check=True)
        subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", *(native / "lib").iterdir()], check=True)

    def take_in_licences(self, folder, libraries):
        """Of the libraries, where Debian has them: PACKAGE/copyright, and libraries.txt, which tells each
        one's package."""
        packages = debian_packages(libraries.values())
        folder.mkdir(parents=True)
        lines = []
        for name, path in sorted(libraries.items()):
            package = packages.get(path)
            copyright_file = Path("/usr/share/doc", package or "none", "copyright")
            if package is None or not copyright_file.is_file():
                print(f"no copyright file is known here for {path}; the wheel has none for it", file=sys.stderr)
            else:
                (folder / package).mkdir(exist_ok=True)
                shutil.copyfile(copyright_file, folder / package / "copyright")
            lines.append(f"{name} {package or 'unknown'}\n")
        (folder / "libraries.txt").write_text("".join(lines), encoding="utf-8")


class NoSources(sdist):
    def run(self):
        sys.exit("kvblend has no source distribution: it is built from its whole repository, by deploy/build_wheel.sh")


class AnyPython(bdist_wheel):
    """No compiled module of Python is inside: the wheel is for every Python, with programs for this platform only."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = KIND == "client"

    def get_tag(self):
        if KIND == "client":
            return "py3", "none", "any"
        # The programs ask for nothing newer than the C library that they were linked with.
        major, minor = platform.libc_ver()[1].split(".")[:2]
        return "py3", "none", f"manylinux_{major}_{minor}_{platform.machine()}"


setup(version=version(), cmdclass={"build_py": BuildWithMessagesAndPrograms, "bdist_wheel": AnyPython, "sdist": NoSources})
