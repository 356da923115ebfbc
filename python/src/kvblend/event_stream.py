"""The lines of an event stream."""

from __future__ import annotations


class Lines:
    """Cuts the bytes of an event stream into its lines, as they come.

    They end with CR, LF or both. Other characters that end a line for str.splitlines, such as U+2028, may stand in a document's
    text, and so in the middle of a line.
    """

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def add(self, piece: bytes) -> list[str]:
        """The lines that end in this piece."""
        self._begun.append(piece)
        if b"\n" not in piece and b"\r" not in piece:
            return []
        lines = b"".join(self._begun).splitlines(keepends=True)
        # An LF may follow a CR in the next piece.
        self._begun = [] if lines[-1].endswith(b"\n") else [lines.pop()]
        return [_text(line) for line in lines]

    def end(self) -> list[str]:
        """What stands behind the last end of a line."""
        rest = b"".join(self._begun)
        self._begun = []
        return [_text(rest)] if rest else []


def _text(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode(errors="replace")
