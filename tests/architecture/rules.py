"""Which folder may include which, and other rules that hold for every file of the tree.

The direction is server -> engine -> kernels, and inside each of them the arrows of ALLOWED. They are all in use: an
arrow that no include needs is taken out, so that ALLOWED is the drawing of docs/architecture.md (drawing.py writes it).
"""

import os
import re
from dataclasses import dataclass

MAX_LINES = 500
MAX_COLUMNS = 110  # of comments: clang-format breaks code, but leaves comments as people broke them
MAX_FILES_PER_FOLDER = 30
MAX_ENGINE_ROOMS = 14
MAX_ENGINE_ARROWS = 40

# Room -> rooms whose headers it includes besides its own. A file belongs to the longest entry that is a prefix of
# its path. Folders that are not named here (tests, for one) may include anything.
ALLOWED = {
    "kernels": set(),
    "kernels/create": {"kernels", "kernels/cuda"},
    "kernels/host": {"kernels"},
    "kernels/reference": {"kernels", "kernels/host"},
    "kernels/cpu/machine": {"kernels"},
    "kernels/cpu/simd": {"kernels", "kernels/host", "kernels/cpu/machine"},
    "kernels/cpu/amx": {"kernels/cpu/machine", "kernels/cpu/simd"},
    "kernels/cpu/kv": {"kernels", "kernels/host", "kernels/cpu/machine", "kernels/cpu/simd"},
    "kernels/cpu/linear": {"kernels", "kernels/host", "kernels/cpu/machine", "kernels/cpu/simd"},
    "kernels/cpu/attention": {
        "kernels", "kernels/host", "kernels/cpu/kv", "kernels/cpu/machine", "kernels/cpu/simd",
    },
    "kernels/cpu": {
        "kernels", "kernels/host", "kernels/cpu/amx", "kernels/cpu/attention", "kernels/cpu/kv", "kernels/cpu/linear",
        "kernels/cpu/machine", "kernels/cpu/simd",
    },
    "kernels/cuda/device": {"kernels"},
    "kernels/cuda/attention": {"kernels/cuda/device"},
    "kernels/cuda/kv": {"kernels/cuda/device"},
    "kernels/cuda/rows": {"kernels/host", "kernels/cuda/device"},
    "kernels/cuda/runtime": {"kernels", "kernels/host", "kernels/cuda/device"},
    "kernels/cuda/linear": {"kernels", "kernels/host", "kernels/cuda/device", "kernels/cuda/runtime"},
    "kernels/cuda": {"kernels", "kernels/cuda/device", "kernels/cuda/linear", "kernels/cuda/runtime"},
    "engine/api": set(),
    "engine/kv": {"kernels", "kernels/host", "engine/api"},
    "engine/schedule": set(),
    "engine/text": set(),
    "engine/prompt": {"engine/api", "engine/text"},
    "engine/generate": {"kernels", "kernels/host", "engine/api"},
    "engine/model": {"kernels", "kernels/host", "engine/text"},
    "engine/store/format": {"kernels", "engine/api"},
    "engine/store": {"engine/api", "engine/store/format"},
    "engine/store/disk": {"engine/api", "engine/store", "engine/store/format"},
    "engine/store/redis": {"engine/api", "engine/store", "engine/store/format"},
    "engine/blend": {
        "kernels", "engine/api", "engine/kv", "engine/model", "engine/prompt", "engine/store", "engine/store/format",
    },
    "engine/runtime": {
        "kernels", "engine/api", "engine/blend", "engine/kv", "engine/model", "engine/store/format", "engine/text",
    },
    "engine/serve": {
        "kernels", "kernels/host", "engine/api", "engine/blend", "engine/generate", "engine/kv", "engine/model",
        "engine/prompt", "engine/runtime", "engine/schedule", "engine/store", "engine/store/disk", "engine/store/format",
        "engine/store/redis", "engine/text",
    },
    "server/convert": {"engine/api", "engine/text"},
    "server/metrics": {"engine/api", "server/convert"},
    "server/trace": {"engine/api"},
    "server/calls": {"engine/api", "server/convert", "server/json", "server/metrics", "server/trace"},
    "server/grpc": {"engine/api", "server/calls", "server/convert", "server/files", "server/metrics", "server/tls", "server/trace"},
    "server/files": set(),
    "server/tls": {"server/files"},
    "server/http": {"server/files", "server/tls"},
    "server/json": set(),
    "server/access": {"engine/api", "server/calls", "server/convert", "server/files", "server/json"},
    "server/openai": {"engine/api", "server/convert", "server/json"},
    "server/api": {"server/calls", "server/cohere", "server/convert", "server/http", "server/json", "server/metrics", "server/openai",
                   "server/trace", "server/ui"},
    "server/ui": {"server/convert"},
    "server/cohere": {"engine/text", "server/json", "server/openai"},
    "server/config": {"engine/api", "server/files", "server/grpc"},
    "server/main": {
        "engine/api", "server/access", "server/api", "server/calls", "server/config", "server/files", "server/grpc", "server/http", "server/json", "server/metrics",
        "server/tls", "server/trace",
    },
    "server/cli": {"engine/api", "engine/text", "server/calls", "server/config", "server/convert", "server/files", "server/grpc"},
    "server/cli/bench": {"engine/api", "server/cli", "server/convert", "server/files"},
    "server/cli/load": {"engine/schedule", "server/calls", "server/cli", "server/cli/bench"},
    "server/cli/precompute": {"engine/kv", "engine/text", "server/calls", "server/cli", "server/files"},
    "server/cli/commands": {
        "engine/api", "engine/store/disk", "engine/text", "server/access", "server/cli", "server/cli/bench", "server/cli/load",
        "server/cli/precompute", "server/config", "server/convert", "server/files", "server/trace", "server/ui",
    },
}

# Small headers over Abseil that every room may include.
COMMON = "base/"

# Libraries of the transports: unknown to engine and kernels, so that both build without them.
TRANSPORT_LIBRARIES = ("grpc/", "grpcpp/", "grpc++/", "google/protobuf/", "kvblend/v1/", "httplib.h", "boost/", "prometheus/",
                       "CLI/", "server/")

# Rooms that may use Abseil and the standard library only.
ABSEIL_ONLY = ("engine/api", "engine/prompt")

SOURCE_SUFFIXES = (".h", ".cc", ".cu", ".cpp", ".hpp", ".inc", ".py", ".sh", ".cmake", ".proto")
INCLUDING_SUFFIXES = (".h", ".hpp", ".cc", ".cpp", ".cu", ".cuh", ".inc")
SOURCE_NAMES = ("CMakeLists.txt", "Dockerfile", "run")
SKIPPED_FOLDERS = {".git", ".cache", "__pycache__", "build", "models", "node_modules", ".venv"}
PRODUCT = ("base/", "kernels/", "engine/", "server/")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
STANDARD_HEADER = re.compile(r"^[a-z_0-9]+$")
COMMENT = re.compile(r"^\s*//+!?\s*(?P<text>.*)$")
# Columns of a table, links, and what clang-tidy reads in one line.
UNBREAKABLE = re.compile(r"\S {2,}\S|https?://|NOLINT")
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")


@dataclass(frozen=True)
class Violation:
    path: str
    line: int
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.message}"


def room_of(path):
    """The entry of ALLOWED that a path belongs to, or None."""
    best = None
    for room in ALLOWED:
        if path.startswith(room + "/") and (best is None or len(room) > len(best)):
            best = room
    return best


def include_problem(path, bracket, target, exists):
    """Why the file at `path` may not include `target`, or None. `exists` tells whether a path is in the tree."""
    if bracket == '"' and (target.startswith(".") or "/" not in target):
        return f'"{target}": includes are written from the root of the repository'
    room = room_of(path)
    if path.startswith(COMMON) and not (target.startswith("absl/") or STANDARD_HEADER.match(target)):
        return f"{path} may use Abseil and the standard library only, not {target}"
    if room is None:
        return None
    if target.startswith("tests/"):
        return f"{path} may not include {target}: the product knows nothing of its tests"
    if not room.startswith("server") and target.startswith(TRANSPORT_LIBRARIES):
        return f"{room} may not know {target}: transports stay in server"
    target_room = room_of(target)
    if room in ABSEIL_ONLY and target_room is None and not target.startswith(COMMON):
        if not (target.startswith("absl/") or (bracket == "<" and STANDARD_HEADER.match(target))):
            return f"{path} may use Abseil and the standard library only, not {target}"
    if target_room is None:
        return None
    if target_room != room and target_room not in ALLOWED[room]:
        return f"{room} may not include {target}; it may include {sorted(ALLOWED[room]) or 'nothing of ours'}"
    if not exists(target):
        return f'"{target}" does not exist'
    return None


def includes(text):
    """(line number, bracket, target) of every include in a file's text."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE.match(line)
        if match:
            found.append((number, match.group(1), match.group(2)))
    return found


def is_long_comment(line):
    """Whether a line is a comment that should have been broken."""
    comment = COMMENT.match(line) if len(line) > MAX_COLUMNS else None
    return comment is not None and not UNBREAKABLE.search(comment["text"])


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
    for number, line in enumerate(lines, start=1):
        if UNFINISHED.search(line):
            violations.append(Violation(path, number, f"unfinished work: {line.strip()}"))
    if path.endswith(INCLUDING_SUFFIXES):
        violations += [Violation(path, number, f"a comment of {len(line)} columns; allowed are {MAX_COLUMNS}")
                       for number, line in enumerate(lines, start=1) if is_long_comment(line)]
        for number, bracket, target in includes(text):
            problem = include_problem(path, bracket, target, exists)
            if problem:
                violations.append(Violation(path, number, problem))
    return violations


# What a slip of the shell leaves behind (`> 1.2x`) does not look like this.
FILE_NAME = re.compile(r"^[A-Za-z_.][A-Za-z0-9_.-]*$")


def all_files(root):
    """Paths of all files below root, relative to it, sorted; build folders and the like left out."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        found += [os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/") for name in names]
    return sorted(found)


def badly_named_files(root):
    """Paths of files below root whose names begin with no letter, or hold what scripts trip over."""
    return [path for path in all_files(root) if not FILE_NAME.match(os.path.basename(path))]


def crowded_folders(root):
    """(folder, number of files) of folders with more files than a reader takes in; fuzzers' corpora are no reading."""
    counts = {}
    for path in all_files(root):
        if not path.startswith("tests/fuzz/corpus/"):
            folder = os.path.dirname(path)
            counts[folder] = counts.get(folder, 0) + 1
    return sorted((folder, count) for folder, count in counts.items() if count > MAX_FILES_PER_FOLDER)


def source_files(root):
    """Paths of all source files below root, relative to it, sorted."""
    return [path for path in all_files(root)
            if path.endswith(SOURCE_SUFFIXES) or os.path.basename(path) in SOURCE_NAMES]


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def arrows(root):
    """Room -> rooms that files of it include, as the tree has it."""
    found = {room: set() for room in ALLOWED}
    for path in source_files(root):
        room = room_of(path)
        if room is None or not path.endswith(INCLUDING_SUFFIXES):
            continue
        for _, _, target in includes(read(root, path)):
            target_room = room_of(target)
            if target_room is not None and target_room != room:
                found[room].add(target_room)
    return found


LIBRARY = re.compile(r"kvblend_library\((\w+)\s(.*?)\)\n", re.DOTALL)


def linked_rooms(root, prefix):
    """Room -> rooms that its CMake target names, for the rooms below `prefix` that are targets of their own."""
    targets, named = {}, {}
    for path in all_files(root):
        if os.path.basename(path) != "CMakeLists.txt" or not path.startswith(PRODUCT):
            continue
        for name, body in LIBRARY.findall(re.sub(r"#.*", "", read(root, path))):
            room = os.path.dirname(path)
            targets[name] = room
            if room.startswith(prefix):
                named.setdefault(room, set()).update(re.findall(r"\b[a-z]\w+\b", body[body.index("DEPS"):]))
    return {room: {targets[name] for name in names if name in targets} - {room} for room, names in named.items()}


def floors(graph):
    """Room -> its floor: one above the highest of the rooms that it includes. REQUIRES: no circle."""
    known = {}

    def floor(room):
        if room not in known:
            known[room] = 1 + max((floor(below) for below in graph[room]), default=0)
        return known[room]

    for room in graph:
        floor(room)
    return known


def check_tree(root):
    """All violations in the tree at root."""
    violations = []
    for path in source_files(root):
        violations += check_text(path, read(root, path), lambda target: os.path.exists(os.path.join(root, target)))
    return violations
