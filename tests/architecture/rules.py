"""Which folder may include which, and other rules that hold for every file of the tree.

The direction is server -> engine -> kernels. Inside engine: schedule -> blend -> {model, kv, store} -> kernels;
text, prompt and split use nothing but Abseil and the standard library.
"""

import os
import re
from dataclasses import dataclass

MAX_LINES = 500

# Folder -> folders whose headers it may include besides its own. A file belongs to the longest entry that is
# a prefix of its path. Folders that are not named here (tests, for one) may include anything.
ALLOWED = {
    "kernels": set(),
    "engine/text": set(),
    "engine/prompt": {"engine/text"},
    "engine/split": {"engine/text"},
    "engine/kv": {"kernels"},
    "engine/store": {"kernels"},
    "engine/store/disk": {"kernels", "engine/store"},
    "engine/store/redis": {"kernels", "engine/store"},
    "engine/model": {"kernels", "engine/kv"},
    "engine/blend": {"kernels", "engine/kv", "engine/store", "engine/model", "engine/prompt"},
    "engine/generate": {"kernels", "engine/text"},
    "engine/schedule": {
        "kernels", "engine/kv", "engine/store", "engine/model", "engine/blend", "engine/generate",
        "engine/prompt", "engine/text",
    },
    "engine": {
        "kernels", "engine/kv", "engine/store", "engine/store/disk", "engine/store/redis", "engine/model", "engine/blend",
        "engine/generate", "engine/prompt", "engine/split", "engine/text", "engine/schedule",
    },
    "server": {"engine", "engine/store", "engine/store/disk", "engine/store/redis", "engine/text"},
}

# What clients ask of the engine: plain data, which every folder of the engine except the lowest may name.
REQUEST_TYPES = "engine/api/request.h"
MAY_NAME_REQUEST_TYPES = {
    "engine/blend", "engine/generate", "engine/prompt", "engine/schedule", "engine/store", "engine", "server",
}

# Small headers that themselves use Abseil only; every folder above kernels may include them.
SHARED_HEADERS = {"engine/api/status_macros.h", "engine/api/tier.h"}

# Libraries of the transports: unknown to engine and kernels, so that both build without them.
TRANSPORT_LIBRARIES = ("grpc/", "grpcpp/", "grpc++/", "google/protobuf/", "kvblend/v1/", "httplib.h", "prometheus/",
                       "CLI/", "server/")

# Folders that may use Abseil and the standard library only.
ABSEIL_ONLY = ("engine/text", "engine/prompt", "engine/split")

SOURCE_SUFFIXES = (".h", ".cc", ".cu", ".cpp", ".hpp", ".py", ".sh", ".cmake", ".proto")
SOURCE_NAMES = ("CMakeLists.txt", "Dockerfile", "run")
SKIPPED_FOLDERS = {".git", ".cache", "__pycache__", "build", "models", "node_modules", ".venv"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
STANDARD_HEADER = re.compile(r"^[a-z_0-9]+$")
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")


@dataclass(frozen=True)
class Violation:
    path: str
    line: int
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.message}"


def owner(path):
    """The entry of ALLOWED that a path belongs to, or None."""
    best = None
    for folder in ALLOWED:
        if path.startswith(folder + "/") and (best is None or len(folder) > len(best)):
            best = folder
    return best


def include_problem(path, bracket, target, exists):
    """Why the file at `path` may not include `target`, or None. `exists` tells whether a path is in the tree."""
    if bracket == '"' and (target.startswith(".") or "/" not in target):
        return f'"{target}": includes are written from the root of the repository'
    folder = owner(path)
    if folder is None:
        return None
    if folder != "server" and target.startswith(TRANSPORT_LIBRARIES):
        return f"{folder} may not know {target}: transports stay in server"
    if target in SHARED_HEADERS and folder != "kernels":
        return None
    if target == REQUEST_TYPES:
        return None if folder in MAY_NAME_REQUEST_TYPES else f"{folder} may not include {target}"
    if folder in ABSEIL_ONLY or path in SHARED_HEADERS:
        library = target.startswith("absl/") or (bracket == "<" and STANDARD_HEADER.match(target))
        if not library and (owner(target) is None or path in SHARED_HEADERS):
            return f"{path} may use Abseil and the standard library only, not {target}"
    target_folder = owner(target)
    if target_folder is None:
        return None
    if target_folder != folder and target_folder not in ALLOWED[folder]:
        return f"{folder} may not include {target}; it may include {sorted(ALLOWED[folder]) or 'nothing of ours'}"
    if not exists(target):
        return f'"{target}" does not exist'
    return None


def check_text(path, text, exists):
    """All violations in one file; `path` is relative to the root, with forward slashes."""
    violations = []
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        violations.append(Violation(path, len(lines), f"{len(lines)} lines; allowed are {MAX_LINES}"))
    # Highway includes *-inl.h once per instruction set, on purpose.
    header = path.endswith((".h", ".hpp")) and not path.endswith("-inl.h")
    if header and not any(line.strip() == "#pragma once" for line in lines):
        violations.append(Violation(path, 1, "#pragma once is missing"))
    cpp = path.endswith((".h", ".hpp", ".cc", ".cpp"))
    for number, line in enumerate(lines, start=1):
        if UNFINISHED.search(line):
            violations.append(Violation(path, number, f"unfinished work: {line.strip()}"))
        match = INCLUDE.match(line) if cpp else None
        if match:
            problem = include_problem(path, match.group(1), match.group(2), exists)
            if problem:
                violations.append(Violation(path, number, problem))
    return violations


# What a slip of the shell leaves behind (`> 1.2x`) does not look like this.
FILE_NAME = re.compile(r"^[A-Za-z_.][A-Za-z0-9_.-]*$")


def badly_named_files(root):
    """Paths of files below root whose names begin with no letter, or hold what scripts trip over."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names if not FILE_NAME.match(name)]
    return sorted(found)


def source_files(root):
    """Paths of all source files below root, relative to it, sorted."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        for name in names:
            if name.endswith(SOURCE_SUFFIXES) or name in SOURCE_NAMES:
                found.append(os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/"))
    return sorted(found)


def check_tree(root):
    """All violations in the tree at root."""
    violations = []
    for path in source_files(root):
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            violations += check_text(path, file.read(), lambda target: os.path.exists(os.path.join(root, target)))
    return violations
