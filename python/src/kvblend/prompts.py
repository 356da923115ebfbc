"""What is asked and answered, before it becomes bytes of either protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvblend.v1 import chunks_pb2
from kvblend.v1 import inference_pb2 as v1


@dataclass(frozen=True)
class Document:
    """A retrieved passage."""

    text: str
    title: str = ""

    def chunk(self) -> str:
        """The text that the model sees, and under which the KV is found: the same as the HTTP API makes of `documents`."""
        title = f"{self.title}\n" if self.title else ""
        return f"{title}{self.text}" + ("" if self.text.endswith("\n") else "\n\n")


def refuse_single(name: str, values: object, allowed: str) -> None:
    """A str is an iterable of its characters, each of which would be a value of its own."""
    if isinstance(values, (str, bytes, Document)):
        raise TypeError(f"{name} is a {type(values).__name__}; allowed: {allowed}")


def texts_of(chunks: Iterable[str | Document]) -> list[str]:
    """A str is a chunk as it is; it carries its own separator."""
    refuse_single("chunks", chunks, "a list of str or Document")
    return [_text_of(index, chunk) for index, chunk in enumerate(chunks)]


def _text_of(index: int, chunk: object) -> str:
    if isinstance(chunk, Document):
        return chunk.chunk()
    if isinstance(chunk, str):
        return chunk
    kind = type(chunk)  # with its module: other libraries have a Document too
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    raise TypeError(f"chunks[{index}] is a {name}; allowed: str or kvblend.Document")


def enum_of(field_name: str, enum: Any, prefix: str, value: str | int) -> Any:
    """A value of one of kvblend.v1's enums: as it is, or by the HTTP API's word for it, such as "low"; empty: the default."""
    if not isinstance(value, str):
        return value
    words = {name.removeprefix(prefix).lower(): number for name, number in enum.items() if number != 0}
    if value and value not in words:
        raise ValueError(f"{field_name} is '{value}'; allowed: {', '.join(words)}")
    return words.get(value, 0)


def make_turn(role: str, text: str, chunks: Iterable[str | Document] = (), *, lead_in: str = "") -> v1.Turn:
    """An earlier turn. role: "user" or "assistant"; chunks and lead_in: as they were when it was the last turn."""
    roles = {"user": v1.ROLE_USER, "assistant": v1.ROLE_ASSISTANT}
    if role not in roles:
        raise ValueError(f"the role of a turn is '{role}'; allowed: user, assistant")
    return v1.Turn(role=roles[role], text=text, lead_in=lead_in, chunks=texts_of(chunks))


def make_request(question: str, chunks: Iterable[str | Document] = (), *, system_text: str = "", lead_in: str = "",
                 history: Sequence[tuple[str, str] | v1.Turn] = (), namespace: str = "", blend: v1.BlendOptions | None = None,
                 sampling: v1.SamplingOptions | None = None, priority: str | int = "",
                 split: str | int = "") -> v1.GenerateRequest:
    """The request for one answer.

    system_text and lead_in are the anchor of the chunks: the same ones find what was stored behind them.
    history: earlier turns, the oldest first, as (role, text) with the role "user" or "assistant"; as make_turn() says
    it where a turn had chunks or a lead-in, so that a server that has kept the conversation finds it again.
    priority: "high", "normal" or "low". split: whether the server looks for passages in a question that comes without chunks,
    "none", "stored" or "passages". Empty: as the server has it.
    """
    return v1.GenerateRequest(
        namespace=namespace, blend=blend, sampling=sampling,
        priority=enum_of("priority", chunks_pb2.Priority, "PRIORITY_", priority),
        prompt=v1.Prompt(system_text=system_text, lead_in=lead_in, chunks=texts_of(chunks), question=question,
                         split=enum_of("split", v1.PromptSplit, "PROMPT_SPLIT_", split),
                         history=[turn if isinstance(turn, v1.Turn) else make_turn(*turn) for turn in history]))


@dataclass
class Answer:
    """A whole answer."""

    text: str = ""
    report: v1.PromptReport = field(default_factory=v1.PromptReport)
    """What was reused, what was computed, and how long it took."""
    finished: v1.GenerateFinished = field(default_factory=v1.GenerateFinished)
    """Why it ended, tokens, seed and timings."""
    logprobs: list[v1.TokenLogprob] = field(default_factory=list)
    """One per token, where SamplingOptions.top_logprobs asked for them. Over HTTP without token ids."""
    top_logprobs: list[v1.TopLogprobs] = field(default_factory=list)
    """The likeliest tokens in each one's place, where SamplingOptions.top_logprobs is 1 or more."""

    def add(self, event: v1.GenerateEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "prompt":
            self.report = event.prompt
        elif kind == "text":
            self.text += event.text.text
            self.logprobs.extend(event.text.logprobs)
            self.top_logprobs.extend(event.text.top_logprobs)
        elif kind == "finished":
            self.finished = event.finished
