"""LlamaIndex: an LLM, and a response synthesizer that hands nodes over as chunks.

    llm = KVBlend(base_url="http://127.0.0.1:8000", api_key=KEY)
    engine = index.as_query_engine(llm=llm, response_synthesizer=KVBlendSynthesizer(llm=llm))
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import fields
from typing import Any

from llama_index.core.base.llms.types import (ChatMessage, ChatResponse, ChatResponseAsyncGen, ChatResponseGen,
                                              CompletionResponse, CompletionResponseAsyncGen, CompletionResponseGen,
                                              LLMMetadata, MessageRole, TextBlock)
from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.response_synthesizers.base import BaseSynthesizer

from kvblend.integrations.conversation import Kept, Message, Settings, kept_for, metadata_of
from kvblend.prompts import Answer, Document, refuse_single
from kvblend.v1 import inference_pb2 as v1

_ROLES = {MessageRole.SYSTEM: "system", MessageRole.DEVELOPER: "system", MessageRole.USER: "user",
          MessageRole.ASSISTANT: "assistant"}


def _message(message: ChatMessage) -> Message:
    if message.role not in _ROLES:
        raise ValueError(f"a message's role is '{message.role}'; allowed: {', '.join(role.value for role in _ROLES)}")
    for block in message.blocks:
        if not isinstance(block, TextBlock):
            raise ValueError(f"a block's type is '{block.block_type}'; allowed: text")
    return Message(_ROLES[message.role], [block.text for block in message.blocks if isinstance(block, TextBlock)])


class KVBlend(CustomLLM):
    """kvblend as an LLM. The fields are those of kvblend.integrations.conversation.Settings. chat() and its variants take
    `chunks`, the retrieved texts; answers carry the server's report in additional_kwargs["kvblend"]."""

    # A field that is misspelt would leave the one that is meant at its default.
    model_config = ConfigDict(extra="forbid")

    base_url: str = Settings.base_url
    api_key: str | None = Field(default=None, exclude=True)
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
    context_window: int = Field(default=8192, description="What the prompt helpers of other synthesizers may fill")

    _kept: Kept | None = PrivateAttr(default=None)

    @classmethod
    def class_name(cls) -> str:
        return "KVBlend"

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=self.context_window, num_output=self.max_tokens, is_chat_model=True,
                           model_name=self.model or "kvblend")

    def _settings(self) -> Settings:
        return Settings(**{setting.name: getattr(self, setting.name) for setting in fields(Settings)})

    def _request(self, messages: Sequence[ChatMessage], chunks: Iterable[str], stop: Sequence[str] | str | None,
                 options: dict[str, Any]) -> v1.GenerateRequest:
        refuse_single("chunks", chunks, "a list of str")
        return self._settings().replaced(options).request([_message(message) for message in messages],
                                                          [Document(text) for text in chunks], stop)

    @staticmethod
    def _response(answer: Answer, delta: str | None = None) -> ChatResponse:
        extra = metadata_of(answer) if answer.finished.reason else {}
        return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=answer.text), delta=delta,
                            additional_kwargs=extra)

    def _stream(self, request: v1.GenerateRequest) -> Generator[ChatResponse, None, None]:
        self._kept = kept_for(self._settings(), self._kept)
        answer = Answer()
        for event in self._kept.client.stream_events(request):
            answer.add(event)
            if event.text.text or event.HasField("finished"):
                yield self._response(answer, event.text.text)

    async def _astream(self, request: v1.GenerateRequest) -> AsyncGenerator[ChatResponse, None]:
        answer = Answer()
        async with self._settings().async_client() as client, aclosing(client.stream_events(request)) as events:
            async for event in events:
                answer.add(event)
                if event.text.text or event.HasField("finished"):
                    yield self._response(answer, event.text.text)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], *, chunks: Iterable[str] = (), stop: Sequence[str] | str | None = None,
             **kwargs: Any) -> ChatResponse:
        *_, last = self._stream(self._request(messages, chunks, stop, kwargs))
        last.delta = None
        return last

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], *, chunks: Iterable[str] = (), stop: Sequence[str] | str | None = None,
                    **kwargs: Any) -> ChatResponseGen:
        return self._stream(self._request(messages, chunks, stop, kwargs))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], *, chunks: Iterable[str] = (), stop: Sequence[str] | str | None = None,
                    **kwargs: Any) -> ChatResponse:
        responses = [response async for response in self._astream(self._request(messages, chunks, stop, kwargs))]
        responses[-1].delta = None
        return responses[-1]

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], *, chunks: Iterable[str] = (),
                           stop: Sequence[str] | str | None = None, **kwargs: Any) -> ChatResponseAsyncGen:
        return self._astream(self._request(messages, chunks, stop, kwargs))

    @staticmethod
    def _user(prompt: str) -> list[ChatMessage]:
        return [ChatMessage(role=MessageRole.USER, content=prompt)]

    @staticmethod
    def _completion(response: ChatResponse) -> CompletionResponse:
        return CompletionResponse(text=response.message.content or "", delta=response.delta,
                                  additional_kwargs=response.additional_kwargs)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return self._completion(self.chat(self._user(prompt), **kwargs))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        return (self._completion(response) for response in self.stream_chat(self._user(prompt), **kwargs))

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return self._completion(await self.achat(self._user(prompt), **kwargs))

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        responses = await self.astream_chat(self._user(prompt), **kwargs)
        return (self._completion(response) async for response in responses)


class KVBlendSynthesizer(BaseSynthesizer):
    """One answer from all retrieved nodes, each of which is a chunk of its own: nothing is packed, cut or refined.

    system_text stands before the chunks and is part of their anchor: the same for all queries. Node metadata that the LLM
    may see (MetadataMode.LLM) is part of a chunk's text.
    """

    def __init__(self, llm: KVBlend, *, system_text: str = "Answer the question from the passages.",
                 question_format: str = "Question: {query_str}", streaming: bool = False, **kwargs: Any) -> None:
        super().__init__(llm=llm, streaming=streaming, **kwargs)
        self._kvblend = llm
        self._system_text = system_text
        self._question_format = question_format

    def _get_prompts(self) -> PromptDictType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        """There are no templates: see system_text and question_format."""

    def _messages(self, query_str: str) -> list[ChatMessage]:
        question = ChatMessage(role=MessageRole.USER, content=self._question_format.format(query_str=query_str))
        return ([ChatMessage(role=MessageRole.SYSTEM, content=self._system_text)] if self._system_text else []) + [question]

    def get_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> Any:
        messages = self._messages(query_str)
        if self._streaming:
            responses = self._kvblend.stream_chat(messages, chunks=text_chunks, **response_kwargs)
            return (response.delta or "" for response in responses)
        return self._kvblend.chat(messages, chunks=text_chunks, **response_kwargs).message.content or ""

    async def aget_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> Any:
        messages = self._messages(query_str)
        if self._streaming:
            responses = await self._kvblend.astream_chat(messages, chunks=text_chunks, **response_kwargs)
            return (response.delta or "" async for response in responses)
        return (await self._kvblend.achat(messages, chunks=text_chunks, **response_kwargs)).message.content or ""
