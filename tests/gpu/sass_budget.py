"""Looks at the machine code of the kernels: sass_budget.py [--update] BUDGET NAME=FILE...

FILE is what `cuobjdump -sass` printed for one object file; NAME is its architecture (sm_80). Looked at are

  hot loops   of every kernel that uses tensor cores: the loop with the most HMMA instructions, fed through LDSM, with
              nothing in local memory. Tiles come to shared memory in copies of 128 bits, in the whole kernel (LDGSTS.128)
  streams     of kernels that are instantiated for 8 elements at a time (`Kernel<8>`): global loads and stores of 128 bits

A line of the budget: architecture, kernel, and what must be there at least of each kind. A kernel with less, with a narrower
copy of a tile or with local memory in its hot loop is a failure; so is one that the budget does not know, or that is gone.
--update writes the budget anew, for a look at the diff.
"""

import re
import sys

from kernel_budget import compare, conclude, demangle, read_budget, short, write_budget

FUNCTION = re.compile(r"^\s*Function : (\S+)")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P[0-9T]+\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?);")
LOOP_KINDS = ("HMMA", "LDSM")
TILE_KINDS = ("LDGSTS.128",)
STREAM_KINDS = ("LDG.128", "STG.128")


def parse(path):
    """Mangled kernel -> [(address, opcode, operands)]"""
    kernels, current = {}, None
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if match := FUNCTION.match(line):
                current = kernels.setdefault(match.group(1), [])
            elif current is not None and (match := INSTRUCTION.match(line)):
                current.append((int(match.group(1), 16), match.group(2), match.group(3)))
    return kernels


def loops(instructions):
    """Bodies of loops: from the target of a branch backwards to the branch."""
    for address, opcode, operands in instructions:
        if opcode.split(".")[0] == "BRA" and (match := re.search(r"0x([0-9a-f]+)", operands)):
            target = int(match.group(1), 16)
            if target < address:
                yield [opcode for at, opcode, _ in instructions if target <= at <= address]


def kind(opcode):
    parts = opcode.split(".")
    if parts[0] in ("LDGSTS", "LDG", "STG"):
        return f"{parts[0]}.128" if "128" in parts else parts[0]
    return parts[0]


def count(opcodes):
    found = {}
    for opcode in opcodes:
        found[kind(opcode)] = found.get(kind(opcode), 0) + 1
    return found


def hot_loop(instructions):
    """What the loop with the most HMMA contains; empty without one. Of loops inside each other the inner one counts."""
    best = {}
    for body in sorted(loops(instructions), key=len, reverse=True):
        found = count(body)
        if found.get("HMMA", 0) > 0 and found.get("HMMA", 0) >= best.get("HMMA", 0):
            best = found
    return best


def look_at(name, instructions):
    """(what must be there at least, complaints), or None for a kernel that is not looked at."""
    everything = count(opcode for _, opcode, _ in instructions)
    if everything.get("HMMA", 0) > 0:
        loop = hot_loop(instructions)
        complaints = []
        if not loop:
            complaints.append("no loop contains tensor-core instructions (HMMA)")
        if everything.get("LDGSTS", 0) > 0:
            complaints.append(f"{everything['LDGSTS']} copies of tiles are narrower than 128 bits (LDGSTS)")
        for local in ("LDL", "STL"):
            if loop.get(local, 0) > 0:
                complaints.append(f"{loop[local]} accesses of local memory in its hot loop ({local})")
        minima = {kind: loop.get(kind, 0) for kind in LOOP_KINDS}
        return minima | {kind: everything.get(kind, 0) for kind in TILE_KINDS}, complaints
    if name.endswith("<8>"):
        return {kind: everything.get(kind, 0) for kind in STREAM_KINDS}, []
    return None


def minima_of(words):
    return {kind: int(least) for kind, _, least in (word.partition("=") for word in words)}


def below(seen, minima):
    contents, complaints = seen
    return complaints + [f"{contents.get(kind, 0)} {kind}; needed: at least {least}"
                         for kind, least in (minima or {}).items() if contents.get(kind, 0) < least]


def main(arguments):
    update = arguments[0] == "--update"
    path, inputs = arguments[1], [argument.partition("=") for argument in arguments[2:]]
    found = {}
    for architecture, _, listing in inputs:
        kernels = parse(listing)
        names = demangle(sorted(kernels))
        for mangled, instructions in kernels.items():
            name = short(names[mangled])
            if (seen := look_at(name, instructions)) is not None:
                found[architecture, name] = seen
    if not found:
        print("sass_budget.py: the listings hold no hot kernel", file=sys.stderr)
        return 1
    if update:
        write_budget(path, "# What the machine code of the hot kernels contains at least; tests/gpu/check_kernels.sh checks it,\n"
                     "# --update writes it. HMMA and LDSM in the hot loop, the others in the whole kernel.\n", found,
                     lambda seen: " ".join(f"{kind}={least}" for kind, least in seen[0].items()))
        return 0
    return conclude(compare(found, read_budget(path, minima_of), below), f"{len(found)} kernels disassembled")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
