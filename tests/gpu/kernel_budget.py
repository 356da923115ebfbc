"""Compares what ptxas -v printed with the committed budget: kernel_budget.py [--update] BUDGET LOG...

A line of the budget: architecture, kernel, registers, bytes of spills, bytes of stack (local memory). A kernel that
needs more than its line says, or has none, is a failure; one that needs less is worth a new budget (--update).
"""

import re
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\d+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def demangle(names):
    result = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True, check=True)
    return dict(zip(names, result.stdout.splitlines()))


def short(name):
    """'void ns::(anonymous namespace)::NormKernel<8>(ns::Params)' becomes 'NormKernel<8>'."""
    for noise in ("kvblend::kernels::cuda::", "(anonymous namespace)::", "(bool)", "(int)", "void "):
        name = name.replace(noise, "")
    return name[: name.rindex("(")].replace(" ", "")


def parse(paths):
    """(architecture, mangled kernel) -> [registers, spills, stack]"""
    found = {}
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            key = None
            for line in file:
                if match := ENTRY.search(line):
                    key = (match.group(2), match.group(1))
                    found[key] = [0, 0, 0]
                elif key and (match := STACK.search(line)):
                    found[key][1] = int(match.group(2)) + int(match.group(3))
                    found[key][2] = int(match.group(1))
                elif key and (match := REGISTERS.search(line)):
                    found[key][0] = int(match.group(1))
    names = demangle(sorted({kernel for _, kernel in found}))
    return {(architecture, short(names[kernel])): values for (architecture, kernel), values in found.items()}


def read_budget(path):
    budget = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                architecture, kernel, *values = line.split()
                budget[architecture, kernel] = [int(value) for value in values]
    return budget


def write_budget(path, found):
    with open(path, "w", encoding="utf-8") as file:
        file.write("# What ptxas may use per kernel; tests/gpu/check_kernels.sh checks it, --update writes it.\n")
        file.write("# architecture kernel registers spill_bytes stack_bytes\n")
        for (architecture, kernel), values in sorted(found.items()):
            file.write(f"{architecture} {kernel} {' '.join(map(str, values))}\n")


def main(arguments):
    update = arguments[0] == "--update"
    path, logs = arguments[1], arguments[2:]
    found = parse(logs)
    if not found:
        print("kernel_budget.py: the logs name no kernel", file=sys.stderr)
        return 1
    if update:
        write_budget(path, found)
        print(f"{path}: {len(found)} kernels")
        return 0
    budget = read_budget(path)
    problems = []
    for key, values in sorted(found.items()):
        allowed = budget.get(key)
        if allowed is None:
            problems.append(f"{' '.join(key)}: not in the budget")
            continue
        for what, value, limit in zip(("registers", "bytes of spills", "bytes of stack"), values, allowed):
            if value > limit:
                problems.append(f"{' '.join(key)}: {value} {what}; allowed: {limit}")
    problems += [f"{' '.join(key)}: in the budget, but no kernel" for key in sorted(budget.keys() - found.keys())]
    for problem in problems:
        print(problem, file=sys.stderr)
    spills = sum(values[1] for values in found.values())
    print(f"{len(found)} kernels compiled (sm_80, sm_90 and PTX), {spills} bytes of spills, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
