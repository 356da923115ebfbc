#!/usr/bin/env python3
"""Draws the rooms of the engine and the arrows among them, from the includes, into docs/architecture.md.

    tests/architecture/drawing.py            prints the drawing
    tests/architecture/drawing.py --update   writes it into docs/architecture.md; the tests compare the two
"""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import rules  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCUMENT = os.path.join(ROOT, "docs", "architecture.md")
BLOCK = re.compile(r"(<!-- rooms of the engine -->\n```\n)(.*?)(```\n<!-- end -->)", re.DOTALL)


def engine_arrows(root):
    """Room of the engine -> rooms of the engine that it includes; names without 'engine/'."""
    return {
        room.removeprefix("engine/"): {
            below.removeprefix("engine/") for below in rooms if below.startswith("engine/")}
        for room, rooms in rules.arrows(root).items() if room.startswith("engine/")
    }


def drawing(root):
    """A line per room, the highest floor first: what it includes."""
    graph = engine_arrows(root)
    floors = rules.floors(graph)
    width = max(map(len, graph))
    lines = []
    for room in sorted(graph, key=lambda name: (-floors[name], name)):
        below = " ".join(sorted(graph[room]))
        lines.append(f"floor {floors[room]}   " + (f"{room:{width}} -> {below}" if below else room))
    number_of_arrows = sum(map(len, graph.values()))
    lines.append(f"{len(graph)} rooms, {max(floors.values())} floors, {number_of_arrows} arrows")
    return "\n".join(lines) + "\n"


def documented(text):
    """The drawing in the document's text, or None."""
    match = BLOCK.search(text)
    return match.group(2) if match else None


def main():
    if sys.argv[1:] not in ([], ["--update"]):
        sys.exit(__doc__)
    if not sys.argv[1:]:
        print(drawing(ROOT), end="")
        return
    with open(DOCUMENT, encoding="utf-8") as file:
        text = file.read()
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(BLOCK.sub(lambda match: match.group(1) + drawing(ROOT) + match.group(3), text))


if __name__ == "__main__":
    main()
