"""What the integrations share: a framework's messages and retrieved documents as a request, and an answer's figures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from google.protobuf import json_format

from kvblend.client import DEFAULT_TIMEOUT_SECONDS
from kvblend.http_client import AsyncHttpClient, HttpClient
from kvblend.openai_form import json_of, seed_of
from kvblend.prompts import Answer, Document, make_request, make_turn
from kvblend.v1 import inference_pb2 as v1


@dataclass(frozen=True)
class Message:
    """One message of a conversation: its role (system, user or assistant) and its texts."""

    role: str
    parts: Sequence[str]


def _turn(message: Message) -> v1.Turn:
    """The parts of a user's message stay the parts that they were when it was the last one."""
    if message.role == "user" and message.parts:
        *chunks, text = message.parts
        return make_turn(message.role, text, chunks)
    return make_turn(message.role, "".join(message.parts))


# The settings that belong to a client, and so hold for all of its requests.
CONNECTION = ("base_url", "api_key", "timeout", "model", "certificate_authorities", "client_certificate", "client_key")


@dataclass(frozen=True)
class Settings:
    """Which server, and what holds for every request to it."""

    base_url: str = "http://127.0.0.1:8000"
    api_key: str | None = None
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    """As in OpenAI's API, where 0 is a seed too; None: the server chooses one."""
    lead_in: str = ""
    namespace: str = ""
    blend: dict[str, Any] = field(default_factory=dict)
    """Fields of kvblend.v1.BlendOptions, such as {"ratio": 0.2, "policy": "POLICY_HKVD"}."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """More fields of kvblend.v1.SamplingOptions, such as {"top_k": 40, "stop": ["\\n"]}. A call's own `stop` goes instead."""
    priority: str = ""
    """high, normal or low; empty: as the server has it."""
    split: str = ""
    """Of prompts without documents, as kvblend.make_request has it."""
    model: str = ""
    """As the server calls it; empty: the one that it has."""
    certificate_authorities: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None
    """PEM files, as kvblend.HttpClient takes them."""

    def replaced(self, changes: dict[str, Any]) -> Settings:
        """With the settings of one call. What is no setting is refused by name, not overlooked."""
        allowed = {setting.name for setting in fields(self)} - set(CONNECTION)
        if unknown := sorted(set(changes) - allowed):
            raise TypeError(f"'{unknown[0]}' is no option of a request; allowed: {', '.join(sorted(allowed))}")
        return replace(self, **changes)

    def request(self, messages: Sequence[Message], documents: Iterable[Document] = (),
                stop: Sequence[str] | str | None = None) -> v1.GenerateRequest:
        """As the HTTP API reads messages: system messages at the beginning are the system text; of the last message, which
        must be the user's, the last part is the question, and those before it are chunks behind the documents. stop: one or
        more; the frameworks hand on what OpenAI's API takes."""
        begin = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
        turns = messages[begin:]
        if not turns or turns[-1].role != "user" or not turns[-1].parts:
            raise ValueError("the last message must be the user's, with a text")
        *chunks, question = turns[-1].parts
        if isinstance(stop, str):  # else every character would be one
            stop = [stop]
        return make_request(
            question, [*documents, *chunks], system_text="\n\n".join("".join(message.parts) for message in messages[:begin]),
            lead_in=self.lead_in, history=[_turn(turn) for turn in turns[:-1]], namespace=self.namespace,
            blend=json_format.ParseDict(self.blend, v1.BlendOptions()) if self.blend else None,
            sampling=self._sampling(stop),
            priority=self.priority, split=self.split)

    def _sampling(self, stop: Iterable[str] | None) -> v1.SamplingOptions:
        """What has a setting of its own may not stand in `sampling` too: the value of a call would lose against it."""
        given = {name.replace("_", "").lower() for name in self.sampling}  # JSON has two spellings
        for name in ("max_tokens", "temperature", "top_p", "seed"):
            if name.replace("_", "") in given:
                raise ValueError(f"sampling has {name}; allowed: {name} as a setting of its own")
        sampling = json_format.ParseDict(self.sampling, v1.SamplingOptions(
            max_tokens=self.max_tokens, temperature=self.temperature, top_p=self.top_p, seed=seed_of(self.seed)))
        if stop is not None:
            sampling.stop[:] = stop
        return sampling

    def connection(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in CONNECTION}

    def client(self) -> HttpClient:
        return HttpClient(**self.connection())

    def async_client(self) -> AsyncHttpClient:
        """For one request: its connections belong to the event loop that runs."""
        return AsyncHttpClient(**self.connection())


class Kept:
    """What a model keeps from one request to the next: a client, and what the server calls its model, ""
    until it was asked.

    Both belong to a connection, which a model's fields may no longer say when the next request comes. A model
    that is copied or pickled keeps nothing (None): sockets and locks cannot come along.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.served = ""

    def fits(self, settings: Settings) -> bool:
        return self._settings.connection() == settings.connection()

    @functools.cached_property
    def client(self) -> HttpClient:
        return self._settings.client()

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()


def _nothing() -> None:
    """What stands for a Kept in a copy."""


def kept_for(settings: Settings, kept: Kept | None) -> Kept:
    """`kept`, or another where it is of another connection. That one is left to its calls: a shallow copy of
    the model, or a thread, may still be in one."""
    return kept if kept is not None and kept.fits(settings) else Kept(settings)


def document_of(text: str, metadata: dict[str, Any] | None) -> Document:
    """Makes one from a framework's document: "title" is the one field of its metadata that the model sees."""
    title = (metadata or {}).get("title")
    return Document(text, title=title if isinstance(title, str) else "")


def cached_tokens(answer: Answer) -> int:
    """Tokens of the prompt whose KV was reused, as in OpenAI's usage."""
    report = answer.report
    return report.kept_tokens + report.exact_tokens + report.reused_tokens


def finish_reason(answer: Answer) -> Literal["stop", "length"]:
    """OpenAI's word for it."""
    ended = (v1.FINISH_REASON_END_OF_TEXT, v1.FINISH_REASON_STOP_STRING)
    return "stop" if answer.finished.reason in ended else "length"


def metadata_of(answer: Answer) -> dict[str, Any]:
    """What frameworks keep beside an answer's text."""
    return {"finish_reason": finish_reason(answer),
            "kvblend": {"prompt": json_of(answer.report, True), "finished": json_of(answer.finished, True)}}
