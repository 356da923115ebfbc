"""LangChain: a chat model that takes retrieved documents as chunks.

    model = ChatKVBlend(base_url="http://127.0.0.1:8000", api_key=KEY)
    chain = {"documents": retriever, "question": RunnablePassthrough()} | with_documents(prompt, model) | StrOutputParser()
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import fields
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.language_models import LangSmithParams
from langchain_core.language_models.chat_models import BaseChatModel, agenerate_from_stream, generate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr

from kvblend.errors import Error
from kvblend.integrations.conversation import (CONNECTION, Kept, Message, Settings, cached_tokens, document_of, kept_for,
                                               metadata_of)
from kvblend.prompts import Answer
from kvblend.v1 import inference_pb2 as v1

# The model's name is asked for behind an answer, which is whole without it: a server that drains ends the one and refuses the
# other.
_NO_MODEL = (Error, IndexError)
_ROLES = {"system": "system", "human": "user", "ai": "assistant"}


def _message(message: BaseMessage) -> Message:
    if message.type not in _ROLES:
        raise ValueError(f"a message's type is '{message.type}'; allowed: {', '.join(_ROLES)}")
    if isinstance(message.content, str):
        return Message(_ROLES[message.type], [message.content])
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in message.content]
    for part in parts:
        if part.get("type") != "text":
            raise ValueError(f"a part's type is '{part.get('type')}'; allowed: text")
    return Message(_ROLES[message.type], [part["text"] for part in parts])


class ChatKVBlend(BaseChatModel):
    """kvblend as a chat model. Documents go with the call: invoke(messages, documents=[Document(...)]); each becomes a chunk,
    whose KV is reused wherever it stands. The fields are those of kvblend.integrations.conversation.Settings, and stop.

    response_metadata["kvblend"] has the server's report, ["model_name"] what it calls its model; usage_metadata counts reused
    tokens as read from the cache.
    """

    # A field that is misspelt would leave the one that is meant at its default.
    model_config = ConfigDict(extra="forbid")

    base_url: str = Settings.base_url
    api_key: SecretStr | None = None
    timeout: float = Settings.timeout
    max_tokens: int = Settings.max_tokens
    temperature: float = Settings.temperature
    top_p: float = Settings.top_p
    seed: int | None = Settings.seed
    lead_in: str = Settings.lead_in
    namespace: str = Settings.namespace
    blend: dict[str, Any] = Field(default_factory=dict)
    sampling: dict[str, Any] = Field(default_factory=dict)
    priority: str = Settings.priority
    split: str = Settings.split
    model: str = Settings.model
    certificate_authorities: str | None = Settings.certificate_authorities
    client_certificate: str | None = Settings.client_certificate
    client_key: str | None = Settings.client_key
    stop: list[str] | None = None
    """Of calls that name none of their own."""
    streaming: bool = False
    """As LangChain reads it of every model: invoke() tells callbacks of each piece of the answer."""

    _kept: Kept | None = PrivateAttr(default=None)

    @property
    def _llm_type(self) -> str:
        return "kvblend"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """All that an answer depends on."""
        return {setting.name: getattr(self, setting.name) for setting in fields(Settings)
                if setting.name not in CONNECTION} | {"base_url": self.base_url, "model": self.model, "stop": self.stop}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        # What is not named is the server's; traces begin before it is asked.
        return params | LangSmithParams(ls_model_name=params.get("ls_model_name") or "kvblend")

    def _settings(self) -> Settings:
        settings = {setting.name: getattr(self, setting.name) for setting in fields(Settings)}
        # A copy has it as it was given: model_copy(update=...) makes nothing of it.
        key = self.api_key.get_secret_value() if isinstance(self.api_key, SecretStr) else self.api_key
        return Settings(**settings | {"api_key": key})

    def _keep(self) -> Kept:
        self._kept = kept_for(self._settings(), self._kept)
        return self._kept

    def _request(self, messages: list[BaseMessage], stop: list[str] | None, documents: Sequence[Document],
                 options: dict[str, Any]) -> v1.GenerateRequest:
        if isinstance(documents, (str, Document)):  # either is an iterable of something else
            raise TypeError(f"documents is a {type(documents).__name__}; allowed: a list of Document")
        return self._settings().replaced(options).request(
            [_message(message) for message in messages],
            [document_of(document.page_content, document.metadata) for document in documents], stop or self.stop)

    def _chunk_of(self, event: v1.GenerateEvent, answer: Answer, served: str) -> ChatGenerationChunk | None:
        answer.add(event)
        if event.WhichOneof("event") == "text" and event.text.text:
            return ChatGenerationChunk(message=AIMessageChunk(content=event.text.text))
        if event.WhichOneof("event") != "finished":
            return None
        usage = answer.finished.usage
        return ChatGenerationChunk(message=AIMessageChunk(
            content="", chunk_position="last",
            response_metadata={"model_provider": "kvblend",
                               "model_name": served or self.model or "kvblend"} | metadata_of(answer),
            usage_metadata=UsageMetadata(
                input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens,
                total_tokens=usage.prompt_tokens + usage.completion_tokens,
                input_token_details={"cache_read": cached_tokens(answer)})))

    def _stream(self, messages: list[BaseMessage], stop: list[str] | None = None,
                run_manager: CallbackManagerForLLMRun | None = None, *, documents: Sequence[Document] = (),
                **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        kept, answer = self._keep(), Answer()
        for event in kept.client.stream_events(self._request(messages, stop, documents, kwargs)):
            if event.HasField("finished") and not kept.served:
                with suppress(*_NO_MODEL):
                    kept.served = kept.client.models()[0]
            if chunk := self._chunk_of(event, answer, kept.served):
                if run_manager:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    async def _astream(self, messages: list[BaseMessage], stop: list[str] | None = None,
                       run_manager: AsyncCallbackManagerForLLMRun | None = None, *, documents: Sequence[Document] = (),
                       **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        kept, answer = self._keep(), Answer()
        request = self._request(messages, stop, documents, kwargs)
        async with self._settings().async_client() as client, aclosing(client.stream_events(request)) as events:
            async for event in events:
                if event.HasField("finished") and not kept.served:
                    with suppress(*_NO_MODEL):
                        kept.served = (await client.models())[0]
                if chunk := self._chunk_of(event, answer, kept.served):
                    if run_manager:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    def _generate(self, messages: list[BaseMessage], stop: list[str] | None = None,
                  run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, **kwargs))

    async def _agenerate(self, messages: list[BaseMessage], stop: list[str] | None = None,
                         run_manager: AsyncCallbackManagerForLLMRun | None = None, **kwargs: Any) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages, stop, **kwargs))


def with_documents(prompt: BasePromptTemplate[Any], model: Runnable[Any, Any],
                   documents_key: str = "documents") -> Runnable[dict[str, Any], Any]:
    """The step of a chain that hands what a retriever found to the model as chunks, instead of pasting it into the prompt.

    Its input is the prompt's, and the documents under documents_key, which the prompt does not name.
    """
    def step(inputs: dict[str, Any]) -> Runnable[Any, Any]:
        return prompt | model.bind(documents=inputs[documents_key])

    return RunnableLambda(step)
