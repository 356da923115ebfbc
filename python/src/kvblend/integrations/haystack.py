"""Haystack: a chat generator with an input for retrieved documents.

    pipeline.add_component("generator", KVBlendGenerator())
    pipeline.connect("retriever.documents", "generator.documents")
"""

from __future__ import annotations

import inspect
from contextlib import aclosing
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage, ChatRole, StreamingCallbackT, StreamingChunk, select_streaming_callback
from haystack.utils import Secret, deserialize_callable, deserialize_secrets_inplace, serialize_callable

from kvblend.integrations.conversation import (CONNECTION, Message, Settings, cached_tokens, document_of, finish_reason,
                                               metadata_of)
from kvblend.prompts import Answer
from kvblend.v1 import inference_pb2 as v1

_ROLES = {ChatRole.SYSTEM: "system", ChatRole.USER: "user", ChatRole.ASSISTANT: "assistant"}


def _message(message: ChatMessage) -> Message:
    if message.role not in _ROLES or len(message.texts) == 0:
        raise ValueError(f"a message has the role '{message.role.value}' and {len(message.texts)} texts; allowed: "
                         "system, user or assistant, with a text")
    return Message(_ROLES[message.role], message.texts)


@component
class KVBlendGenerator:
    """Generates an answer to messages, with documents as chunks whose KV is reused wherever they stand.

    generation_kwargs: max_tokens, temperature, top_p, seed, lead_in, namespace, blend, sampling, priority, split and stop, as in
    kvblend.integrations.conversation.Settings, which tells of the other arguments as well. A reply's meta has finish_reason,
    usage and the server's report ("kvblend").
    """

    def __init__(self, base_url: str = Settings.base_url, api_key: Secret | None = None,
                 generation_kwargs: dict[str, Any] | None = None, streaming_callback: StreamingCallbackT | None = None,
                 timeout: float = Settings.timeout, model: str = Settings.model, certificate_authorities: str | None = None,
                 client_certificate: str | None = None, client_key: str | None = None) -> None:
        self.base_url = base_url
        self.api_key = api_key
        self.generation_kwargs = generation_kwargs or {}
        self.streaming_callback = streaming_callback
        self.timeout = timeout
        self.model = model
        self.certificate_authorities = certificate_authorities
        self.client_certificate = client_certificate
        self.client_key = client_key

    def to_dict(self) -> dict[str, Any]:
        callback = serialize_callable(self.streaming_callback) if self.streaming_callback else None
        fields: dict[str, Any] = default_to_dict(
            self, generation_kwargs=self.generation_kwargs, streaming_callback=callback,
            **{name: getattr(self, name) for name in CONNECTION} | {"api_key": self.api_key.to_dict() if self.api_key else None})
        return fields

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> KVBlendGenerator:
        fields = data["init_parameters"]
        if fields.get("api_key"):
            deserialize_secrets_inplace(fields, keys=["api_key"])
        if fields.get("streaming_callback"):
            fields["streaming_callback"] = deserialize_callable(fields["streaming_callback"])
        generator: KVBlendGenerator = default_from_dict(cls, data)
        return generator

    def _settings(self, options: dict[str, Any]) -> Settings:
        connection = {name: getattr(self, name) for name in CONNECTION}
        key = self.api_key.resolve_value() if self.api_key else None
        return Settings(**connection | {"api_key": key}).replaced(options)

    def _request(self, messages: list[ChatMessage] | str, documents: list[Document] | None,
                 generation_kwargs: dict[str, Any] | None) -> tuple[Settings, v1.GenerateRequest]:
        options = self.generation_kwargs | (generation_kwargs or {})
        stop = options.pop("stop", None)
        settings = self._settings(options)
        turns = [ChatMessage.from_user(messages)] if isinstance(messages, str) else messages
        retrieved = [document_of(document.content or "", document.meta) for document in documents or ()]
        return settings, settings.request([_message(turn) for turn in turns], retrieved, stop)

    @staticmethod
    def _reply(answer: Answer) -> dict[str, list[ChatMessage]]:
        usage = answer.finished.usage
        meta = metadata_of(answer) | {"usage": {
            "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens(answer)}}}
        return {"replies": [ChatMessage.from_assistant(answer.text, meta=meta)]}

    @staticmethod
    def _chunk_of(event: v1.GenerateEvent, answer: Answer) -> StreamingChunk | None:
        answer.add(event)
        if event.text.text:
            return StreamingChunk(event.text.text, index=0)
        if event.HasField("finished"):
            return StreamingChunk("", index=0, finish_reason=finish_reason(answer), meta=metadata_of(answer))
        return None

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage] | str, documents: list[Document] | None = None,
            streaming_callback: StreamingCallbackT | None = None,
            generation_kwargs: dict[str, Any] | None = None) -> dict[str, list[ChatMessage]]:
        """The reply to the last message, which must be the user's."""
        callback = select_streaming_callback(self.streaming_callback, streaming_callback, requires_async=False)
        settings, request = self._request(messages, documents, generation_kwargs)
        answer = Answer()
        with settings.client() as client:
            for event in client.stream_events(request):
                chunk = self._chunk_of(event, answer)
                if chunk and callback:
                    callback(chunk)
        return self._reply(answer)

    @component.output_types(replies=list[ChatMessage])
    async def run_async(self, messages: list[ChatMessage] | str, documents: list[Document] | None = None,
                        streaming_callback: StreamingCallbackT | None = None,
                        generation_kwargs: dict[str, Any] | None = None) -> dict[str, list[ChatMessage]]:
        """See run."""
        callback = select_streaming_callback(self.streaming_callback, streaming_callback, requires_async=True)
        settings, request = self._request(messages, documents, generation_kwargs)
        answer = Answer()
        async with settings.async_client() as client, aclosing(client.stream_events(request)) as events:
            async for event in events:
                chunk = self._chunk_of(event, answer)
                if chunk and callback:
                    called = callback(chunk)
                    if inspect.isawaitable(called):
                        await called
        return self._reply(answer)
