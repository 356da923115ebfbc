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


def read_budget(path, values_of):
    """(architecture, kernel) -> what `values_of` makes of the rest of its line."""
    budget = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                architecture, kernel, *values = line.split()
                budget[architecture, kernel] = values_of(values)
    return budget


def write_budget(path, head, found, line_of):
    with open(path, "w", encoding="utf-8") as file:
        file.write(head)
        for (architecture, kernel), values in sorted(found.items()):
            file.write(f"{architecture} {kernel} {line_of(values)}\n")
    print(f"{path}: {len(found)} kernels")


def compare(found, budget, problems_of):
    """The problems of all kernels: `problems_of` gives those of one, from what was found and what is allowed."""
    problems = []
    for key, values in sorted(found.items()):
        of_kernel = problems_of(values, budget.get(key))
        problems += [f"{' '.join(key)}: {problem}" for problem in of_kernel + ["not in the budget"] * (key not in budget)]
    return problems + [f"{' '.join(key)}: in the budget, but no kernel" for key in sorted(budget.keys() - found.keys())]


def conclude(problems, summary):
    """The exit code."""
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{summary}, {len(problems)} problems")
    return 1 if problems else 0


def above(values, allowed):
    return [f"{value} {what}; allowed: {limit}"
            for what, value, limit in zip(("registers", "bytes of spills", "bytes of stack"), values, allowed or [])
            if value > limit]


def main(arguments):
    update = arguments[0] == "--update"
    path, logs = arguments[1], arguments[2:]
    found = parse(logs)
    if not found:
        print("kernel_budget.py: the logs name no kernel", file=sys.stderr)
        return 1
    if update:
        write_budget(path, "# What ptxas may use per kernel; tests/gpu/check_kernels.sh checks it, --update writes it.\n"
                     "# architecture kernel registers spill_bytes stack_bytes\n", found,
                     lambda values: " ".join(map(str, values)))
        return 0
    problems = compare(found, read_budget(path, lambda values: [int(value) for value in values]), above)
    spills = sum(values[1] for values in found.values())
    return conclude(problems, f"{len(found)} kernels compiled (sm_80, sm_90 and PTX), {spills} bytes of spills")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
