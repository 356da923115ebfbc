"""kvblend.v1's requests and events in the form of the HTTP API, which is OpenAI's with an extension (docs/http-api.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from kvblend import errors
from kvblend.v1 import chunks_pb2
from kvblend.v1 import inference_pb2 as v1

# Method of kvblend.v1.Chunks -> (method, path). Fields of a GET go into the query.
CHUNK_PATHS = {"Stat": ("POST", "/v1/chunks/stat"), "List": ("GET", "/v1/chunks"), "Delete": ("POST", "/v1/chunks/delete"),
               "Pin": ("POST", "/v1/chunks/pin"), "Split": ("POST", "/v1/chunks/split"),
               "Prefetch": ("POST", "/v1/chunks/prefetch")}

_SEED_ZERO = 1 << 63


def json_of(message: Message, all_fields: bool = False) -> dict[str, Any]:
    """In Protobuf's JSON; with all_fields those that are zero as well, as the server writes its answers."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=all_fields)


def seed_of(seed: int | None) -> int:
    """kvblend.v1's seed for one of OpenAI's, where 0 is a seed like any other and None leaves the choice to the server. The same
    number as the server makes of it, so that seed 0 gives one answer for all clients."""
    if seed is None:
        return 0
    return seed % (1 << 64) if seed else _SEED_ZERO


def _openai_seed(seed: int) -> int:
    """The number, which is an integer with a sign over HTTP, of which the server makes this seed."""
    return seed if seed < 1 << 63 else seed - (1 << 64)


def _content_of(turn: v1.Turn) -> str | list[dict[str, Any]]:
    """An earlier turn's text, or the parts that it had: texts are chunks, but texts before a document are the lead-in."""
    if not turn.chunks and not turn.lead_in:
        return turn.text
    if not turn.lead_in:
        return [{"type": "text", "text": text} for text in (*turn.chunks, turn.text)]
    if not turn.chunks or not all(chunk.endswith("\n") for chunk in turn.chunks):
        raise ValueError("a turn of the history has a lead-in; allowed over HTTP: with chunks that end with a newline")
    documents = [{"type": "document", "source": {"type": "text", "data": chunk}} for chunk in turn.chunks]
    return [{"type": "text", "text": turn.lead_in}, *documents, {"type": "text", "text": turn.text}]


def _check_finite(sampling: v1.SamplingOptions) -> None:
    """JSON has no other numbers. gRPC carries them, and the server refuses them."""
    numbers = {field.name: value for field, value in sampling.ListFields() if isinstance(value, float)}
    numbers |= {f"logit_bias[{token}]": bias for token, bias in sampling.logit_bias.items()}
    for name, value in numbers.items():
        if not math.isfinite(value):
            raise errors.Error("INVALID_ARGUMENT", f"{name} is {value}; allowed: a finite number")


def body_of(request: v1.GenerateRequest) -> dict[str, Any]:
    """The body that asks for a streamed chat completion. Every chunk is a part of the last message, as it is."""
    prompt, sampling = request.prompt, request.sampling
    _check_finite(sampling)
    messages: list[dict[str, Any]] = []
    if prompt.system_text:
        messages.append({"role": "system", "content": prompt.system_text})
    for turn in prompt.history:
        messages.append({"role": "assistant" if turn.role == v1.ROLE_ASSISTANT else "user", "content": _content_of(turn)})
    parts = [{"type": "text", "text": text} for text in (*prompt.chunks, prompt.question)]
    messages.append({"role": "user", "content": parts if prompt.chunks else prompt.question})
    extension: dict[str, Any] = {}
    if prompt.lead_in:
        extension["lead_in"] = prompt.lead_in
    if request.priority:
        extension["priority"] = chunks_pb2.Priority.Name(request.priority).removeprefix("PRIORITY_").lower()
    if prompt.split:
        extension["split"] = v1.PromptSplit.Name(prompt.split).removeprefix("PROMPT_SPLIT_").lower()
    if request.namespace:
        extension["namespace"] = request.namespace
    if request.HasField("blend"):
        extension["blend"] = json_of(request.blend)
    if sampling.attribution:
        extension["attribution"] = True
    body: dict[str, Any] = {"messages": messages, "stream": True, "temperature": sampling.temperature}
    if extension:
        body["kvblend"] = extension
    for name in ("max_tokens", "top_p", "repetition_penalty"):
        if sampling.HasField(name):
            body[name] = getattr(sampling, name)
    if sampling.seed:
        body["seed"] = _openai_seed(sampling.seed)
    for name in ("top_k", "min_p", "ignore_eos", "presence_penalty", "frequency_penalty"):
        if getattr(sampling, name):
            body[name] = getattr(sampling, name)
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.HasField("top_logprobs") and sampling.top_logprobs >= 0:
        body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
    return body


def _logprob(entry: dict[str, Any]) -> v1.TokenLogprob:
    return v1.TokenLogprob(text=entry["token"], logprob=entry["logprob"], bytes=bytes(entry.get("bytes") or ()))


def _delta(choice: dict[str, Any]) -> v1.TextDelta:
    delta = v1.TextDelta(text=choice["delta"].get("content") or "")
    for token in (choice.get("logprobs") or {}).get("content") or ():
        delta.logprobs.append(_logprob(token))
        if token["top_logprobs"]:
            delta.top_logprobs.append(v1.TopLogprobs(tokens=[_logprob(entry) for entry in token["top_logprobs"]]))
    return delta


def is_end(line: str) -> bool:
    """The line that ends every stream of events that is whole."""
    return line.startswith("data:") and line[len("data:"):].strip() == "[DONE]"


@contextmanager
def reading() -> Iterator[None]:
    """Inside, an answer is read, which may be of another server, or a proxy's page: then it has not what is looked for."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, json_format.Error) as error:
        raise errors.unreadable(error) from error


def data_of(line: str) -> Any:
    """The JSON of a line of an event stream; None where it carries none. Raises kvblend.Error for an event that is one."""
    if not line.startswith("data:") or is_end(line):
        return None
    try:
        event = json.loads(line[len("data:"):])
    except ValueError as error:
        raise errors.broken_off() from error
    if event.get("error") is not None:
        raise errors.of_event(event["error"])
    return event


def events_of(line: str) -> list[v1.GenerateEvent]:
    """The events that a line of a chat completion's stream stands for."""
    with reading():
        event = data_of(line)
        return [] if event is None else _events_in(event)


def _events_in(event: dict[str, Any]) -> list[v1.GenerateEvent]:
    events = [v1.GenerateEvent(text=_delta(choice)) for choice in event["choices"]]
    if "kvblend" in event:
        for name in ("prompt", "finished"):
            events.append(json_format.ParseDict({name: event["kvblend"][name]}, v1.GenerateEvent(), ignore_unknown_fields=True))
    return events


def progress_of(line: str) -> chunks_pb2.PutChunkProgress | None:
    """The progress that a line of the stream of POST /v1/chunks tells."""
    with reading():
        event = data_of(line)
        return None if event is None else json_format.ParseDict(event, chunks_pb2.PutChunkProgress(), ignore_unknown_fields=True)


def error_of(status: int, body: bytes, headers: Mapping[str, str]) -> errors.Error:
    """The error for an answer with a status other than 200. headers: with names in lower case."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = None
    if not isinstance(message, str):  # a proxy's
        message = body.decode(errors="replace")[:1000]
        if location := headers.get("location"):  # which is not followed: a POST would become a GET, or the key go elsewhere
            message = f"the answer is {_status_line(status)}, to {location}"
    return errors.of_http_status(status, message or f"the answer is {_status_line(status)}, without a body", headers)


def _status_line(status: int) -> str:
    """Such as "502 Bad Gateway"."""
    phrase = {known.value: known.phrase for known in HTTPStatus}.get(status, "")
    return f"{status} {phrase}".strip()
