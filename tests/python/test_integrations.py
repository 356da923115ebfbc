"""LangChain, LlamaIndex and Haystack, as they come from PyPI, against a running server. In each the second request has the
documents in another order and must find what the first one has stored."""

import asyncio
import dataclasses
import importlib.util
import json
import re
import subprocess
import sys

import pytest

from conftest import DOCUMENTS, DONE, QUESTION, ROOT, SYSTEM_TEXT, TEXT, Server, wait_until

MISSING = [name for name in ("langchain_core", "langchain_openai", "llama_index.core", "haystack")
           if importlib.util.find_spec(name.split(".")[0]) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; "
                                "tests/python/run.sh --integrations installs them")
if not MISSING:
    from haystack import Document as HaystackDocument
    from haystack import Pipeline, component
    from haystack.core.errors import DeserializationError
    from haystack.dataclasses import ChatMessage as HaystackMessage
    from haystack.utils import Secret
    from langchain_core.documents import Document as LangChainDocument
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnablePassthrough
    from langchain_openai import ChatOpenAI
    from llama_index.core import SummaryIndex
    from llama_index.core.llms import ChatMessage as LlamaIndexMessage
    from llama_index.core.schema import TextNode

    from kvblend.integrations.conversation import CONNECTION, Message, Settings
    from kvblend.integrations.haystack import KVBlendGenerator
    from kvblend.integrations.langchain import ChatKVBlend, with_documents
    from kvblend.integrations.llamaindex import KVBlend, KVBlendSynthesizer


def sources(report):
    return {chunk["source"] for chunk in report["prompt"]["chunks"]}


MISS = {"CHUNK_SOURCE_MISS"}


def when_stored(ask, report_of):
    """What ask() gives once nothing is missing any more: chunks are stored behind the first answer."""
    answers = []

    def found():
        answers.append(ask())
        return not sources(report_of(answers[-1])) & MISS
    wait_until(found, "chunks are stored behind the answer")
    return answers[-1]


def langchain_documents():
    return [LangChainDocument(document.text, metadata={"title": document.title}) for document in DOCUMENTS]


def test_langchain_model(server, namespace):
    model = ChatKVBlend(base_url=server.url, namespace=namespace, max_tokens=16)
    messages = [SystemMessage(SYSTEM_TEXT), HumanMessage("Hello."), AIMessage("Hello!"), HumanMessage(QUESTION)]
    first = model.invoke(messages, documents=langchain_documents())
    assert first.content and sources(first.response_metadata["kvblend"]) == MISS
    again = when_stored(lambda: model.invoke(messages, documents=langchain_documents()[::-1]),
                        lambda message: message.response_metadata["kvblend"])
    report = again.response_metadata["kvblend"]["prompt"]
    assert again.usage_metadata["input_token_details"]["cache_read"] == report["exact_tokens"] + report["reused_tokens"]
    assert again.usage_metadata["input_tokens"] == first.usage_metadata["input_tokens"]
    pieces = list(model.stream(messages, documents=langchain_documents()[::-1]))
    assert len(pieces) > 2 and "".join(piece.content for piece in pieces) == again.content
    assert asyncio.run(model.ainvoke(messages, documents=langchain_documents()[::-1])).content == again.content

    async def collect():
        return [piece.content async for piece in model.astream(messages, documents=langchain_documents()[::-1])]
    assert "".join(asyncio.run(collect())) == again.content
    with pytest.raises(TypeError, match="'top_kk'"):
        model.invoke(messages, top_kk=3)
    with pytest.raises(ValueError, match="image_url"):
        model.invoke([HumanMessage([{"type": "image_url", "image_url": {"url": "data:"}}])])


def test_langchain_chain(server, namespace):
    """The usual chain with the pasting step left out; and text parts of a plain OpenAI chain are the same chunks."""
    model = ChatKVBlend(base_url=server.url, namespace=namespace, max_tokens=16)
    prompt = ChatPromptTemplate.from_messages([("system", SYSTEM_TEXT), ("user", "Question: {question}")])
    reports = []
    chain = ({"documents": lambda _: langchain_documents(), "question": RunnablePassthrough()}
             | with_documents(prompt, model) | (lambda message: reports.append(message) or message) | StrOutputParser())
    answer = chain.invoke(QUESTION)
    assert answer and len(reports[0].response_metadata["kvblend"]["prompt"]["chunks"]) == len(DOCUMENTS)
    when_stored(lambda: chain.invoke(QUESTION), lambda _: reports[-1].response_metadata["kvblend"])
    plain = ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", model="", temperature=0, max_tokens=16,
                       extra_body={"kvblend": {"namespace": namespace}})
    parts = [{"type": "text", "text": document.chunk()} for document in DOCUMENTS]
    told = plain.invoke([SystemMessage(SYSTEM_TEXT), HumanMessage([*parts, {"type": "text", "text": f"Question: {QUESTION}"}])])
    assert told.usage_metadata["input_token_details"]["cache_read"] > 0


def test_llamaindex(server, namespace):
    llm = KVBlend(base_url=server.url, namespace=namespace, max_tokens=16)
    nodes = [TextNode(text=document.chunk()) for document in DOCUMENTS]
    engine = SummaryIndex(nodes).as_query_engine(llm=llm, response_synthesizer=KVBlendSynthesizer(llm, system_text=SYSTEM_TEXT))
    first = engine.query(QUESTION)
    assert str(first) and len(first.source_nodes) == len(DOCUMENTS)
    messages = [LlamaIndexMessage(role="system", content=SYSTEM_TEXT),
                LlamaIndexMessage(role="user", content=f"Question: {QUESTION}")]
    told = when_stored(lambda: llm.chat(messages, chunks=[node.text for node in nodes]),
                       lambda response: response.additional_kwargs["kvblend"]).message.content
    assert str(engine.query(QUESTION)) == told
    streamed = SummaryIndex(nodes).as_query_engine(
        llm=llm, response_synthesizer=KVBlendSynthesizer(llm, system_text=SYSTEM_TEXT, streaming=True)).query(QUESTION)
    assert "".join(streamed.response_gen) == told
    assert str(asyncio.run(engine.aquery(QUESTION))) == told
    whole = llm.complete(QUESTION).text
    assert whole == "".join(piece.delta for piece in llm.stream_complete(QUESTION)) == asyncio.run(llm.acomplete(QUESTION)).text


def test_llamaindex_streams_without_blocking(server, namespace):
    """What comes in pieces is what comes at once, from the LLM, for a text, and through a query engine."""
    llm = KVBlend(base_url=server.url, namespace=namespace, max_tokens=16, blend={"store_misses": False})
    messages = [LlamaIndexMessage(role="user", content=f"Question: {QUESTION}")]
    chunks = [document.chunk() for document in DOCUMENTS]
    index = SummaryIndex([TextNode(text=chunk) for chunk in chunks])

    def engine(**options):
        return index.as_query_engine(llm=llm, response_synthesizer=KVBlendSynthesizer(llm, system_text=SYSTEM_TEXT, **options))

    async def collected():
        chat = [piece async for piece in await llm.astream_chat(messages, chunks=chunks)]
        text = [piece async for piece in await llm.astream_complete(QUESTION)]
        response = await engine(streaming=True).aquery(QUESTION)
        return chat, text, [piece async for piece in response.response_gen]

    chat, text, queried = asyncio.run(collected())
    assert len(chat) > 2 and len(queried) > 2
    assert "".join(piece.delta for piece in chat) == chat[-1].message.content == llm.chat(messages, chunks=chunks).message.content
    assert chat[-1].additional_kwargs["kvblend"]["prompt"]["chunks"]
    assert "".join(piece.delta for piece in text) == text[-1].text == llm.complete(QUESTION).text
    assert "".join(queried) == str(engine().query(QUESTION))


@pytest.mark.parametrize("seed, sent", [({}, 0), ({"seed": 0}, 1 << 63), ({"seed": 7}, 7)])
def test_seeds_are_those_of_openai(seed, sent):
    """0 is one; without a word the server chooses."""
    assert ChatKVBlend(**seed)._request([HumanMessage("Why?")], None, [], {}).sampling.seed == sent
    assert KVBlend(**seed)._request([LlamaIndexMessage(role="user", content="Why?")], [], None, {}).sampling.seed == sent
    assert KVBlendGenerator(generation_kwargs=seed)._request("Why?", None, None)[1].sampling.seed == sent


def test_haystack(server, namespace):
    @component
    class Retriever:
        @component.output_types(documents=list[HaystackDocument])
        def run(self, backwards: bool):
            found = [HaystackDocument(content=document.text, meta={"title": document.title}) for document in DOCUMENTS]
            return {"documents": found[::-1] if backwards else found}

    pipeline = Pipeline()
    pipeline.add_component("retriever", Retriever())
    pipeline.add_component("generator", KVBlendGenerator(
        server.url, generation_kwargs={"namespace": namespace, "max_tokens": 16}))
    pipeline.connect("retriever.documents", "generator.documents")
    messages = [HaystackMessage.from_system(SYSTEM_TEXT), HaystackMessage.from_user(QUESTION)]

    def ask(backwards):
        (reply,) = pipeline.run({"retriever": {"backwards": backwards}, "generator": {"messages": messages}})["generator"]["replies"]
        return reply

    assert sources(ask(False).meta["kvblend"]) == MISS
    reply = when_stored(lambda: ask(True), lambda message: message.meta["kvblend"])
    assert reply.meta["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    generator = pipeline.get_component("generator")
    pieces = []
    streamed = generator.run(QUESTION, streaming_callback=pieces.append)["replies"][0].text
    assert "".join(piece.content for piece in pieces) == streamed and pieces[-1].finish_reason in ("stop", "length")
    assert asyncio.run(generator.run_async(QUESTION))["replies"][0].text == streamed
    assert asyncio.run(pipeline.run_async({"retriever": {"backwards": True}, "generator": {"messages": messages}}))[
        "generator"]["replies"][0].text == ask(True).text
    with pytest.raises(TypeError, match="'top_kk'"):
        generator.run(QUESTION, generation_kwargs={"top_kk": 3})
    kept = KVBlendGenerator(server.url, api_key=Secret.from_env_var("KEY", strict=False), generation_kwargs={"seed": 7})
    assert KVBlendGenerator.from_dict(kept.to_dict()).to_dict() == kept.to_dict()


def test_a_saved_pipeline_of_haystack_is_loaded_as_the_documentation_says(monkeypatch):
    pipeline = Pipeline()
    pipeline.add_component("generator", KVBlendGenerator("http://localhost:9", api_key=Secret.from_env_var("KEY", strict=False),
                                                         generation_kwargs={"max_tokens": 16, "stop": ["\n"]}))
    saved = pipeline.dumps()
    with pytest.raises(DeserializationError, match="allowlist"):
        Pipeline.loads(saved)
    documentation = (ROOT / "docs/python.md").read_text()
    (told,) = re.findall(r"`Pipeline\.loads\(text, allowed_modules=(\[.*?\])\)`", documentation)
    assert Pipeline.loads(saved, allowed_modules=json.loads(told)).dumps() == saved
    (told,) = re.findall(r"`(HAYSTACK_DESERIALIZATION_ALLOWLIST)=(\S+)`", documentation)
    monkeypatch.setenv(*told)
    assert Pipeline.loads(saved).dumps() == saved


@pytest.mark.parametrize("awaited", [False, True], ids=["called", "awaited"])
def test_haystack_streams_without_blocking(server, awaited):
    """To a callback, which may be asynchronous itself."""
    pieces = []

    def called(piece):
        pieces.append(piece)

    async def coroutine(piece):
        pieces.append(piece)
    generator = KVBlendGenerator(server.url, generation_kwargs={"max_tokens": 16})
    pipeline = Pipeline()
    pipeline.add_component("generator", generator)
    told = asyncio.run(pipeline.run_async({"generator": {
        "messages": [HaystackMessage.from_user(QUESTION)], "streaming_callback": coroutine if awaited else called}}))
    assert len(pieces) > 2 and pieces[-1].finish_reason in ("stop", "length")
    assert "".join(piece.content for piece in pieces) == told["generator"]["replies"][0].text == generator.run(QUESTION)["replies"][0].text


def test_a_call_does_not_lose_against_the_models_sampling():
    settings = Settings(sampling={"stop": ["from the model"], "top_k": 7}, max_tokens=5)
    message = Message("user", ["Where?"])
    assert list(settings.request([message]).sampling.stop) == ["from the model"]
    asked = settings.replaced({"max_tokens": 6}).request([message], stop=["from the call"]).sampling
    assert (list(asked.stop), asked.max_tokens, asked.top_k) == (["from the call"], 6, 7)
    for name in ("max_tokens", "maxTokens", "top_p", "temperature", "seed"):
        with pytest.raises(ValueError, match="as a setting of its own"):
            Settings(sampling={name: 0}).request([message])


def test_every_setting_reaches_the_request_and_the_client():
    """In each integration: what is set there is in the request, or in the client that carries it."""
    values = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.5, "seed": 3, "lead_in": "Passages:", "namespace": "x",
              "blend": {"ratio": 0.5}, "sampling": {"top_k": 5}, "priority": "low", "split": "passages"}
    connection = {"base_url": "http://localhost:9", "timeout": 3.0, "model": "SmolLM2"}
    assert {*values, *CONNECTION} == {setting.name for setting in dataclasses.fields(Settings)}
    asked = [HumanMessage("Why?")]
    plain = ChatKVBlend()._request(asked, None, [], {})
    for name, value in values.items():
        requests = [ChatKVBlend(**{name: value})._request(asked, None, [], {}), ChatKVBlend()._request(asked, None, [], {name: value}),
                    KVBlend(**{name: value})._request([LlamaIndexMessage(role="user", content="Why?")], [], None, {}),
                    KVBlendGenerator(generation_kwargs={name: value})._request("Why?", None, None)[1]]
        assert requests[0] != plain and all(request == requests[0] for request in requests), name
    for name, value in connection.items():
        for settings in (ChatKVBlend(**{name: value})._settings(), KVBlend(**{name: value})._settings(),
                         KVBlendGenerator(**{name: value})._settings({})):
            assert getattr(settings, name) == value
    stop = ["\n"]
    assert ChatKVBlend(stop=stop)._request(asked, None, [], {}).sampling.stop == stop
    assert ChatKVBlend(stop=["x"])._request(asked, stop, [], {}).sampling.stop == stop


@pytest.mark.parametrize("stop", ["born", ["born"]])
def test_one_stop_string_is_no_list_of_its_characters(canned, stop):
    canned.answer = (200, {}, TEXT + DONE)
    url = f"http://127.0.0.1:{canned.server_address[1]}"
    for ask in (lambda: ChatKVBlend(base_url=url).bind(stop=stop).invoke(QUESTION),
                lambda: KVBlend(base_url=url).stream_complete(QUESTION, stop=stop).send(None),
                lambda: KVBlendGenerator(url, generation_kwargs={"stop": stop}).run(QUESTION)):
        ask()
        assert canned.asked["stop"] == ["born"]


@pytest.mark.parametrize("models", [(503, {}, '{"error": {"message": "the engine is shutting down"}}'), (200, {}, '{"data": []}')])
def test_an_answer_of_langchain_is_whole_without_the_models_name(canned, models):
    """A server that drains ends the answer, and takes no request behind it."""
    last = {"choices": [{"delta": {}}], "kvblend": {"prompt": {}, "finished": {"reason": "FINISH_REASON_END_OF_TEXT"}}}
    canned.answer, canned.answer_to_get = (200, {}, f"{TEXT}data: {json.dumps(last)}\n\n{DONE}"), models
    url = f"http://127.0.0.1:{canned.server_address[1]}"
    for name, told in (("", "kvblend"), ("small", "small")):
        model = ChatKVBlend(base_url=url, model=name)
        for answer in (model.invoke(QUESTION), asyncio.run(model.ainvoke(QUESTION))):
            assert answer.content == "Skarn" and answer.response_metadata["model_name"] == told


def test_the_example_of_a_plain_chain(tmp_path):
    """It knows the base URL and nothing else of the server, which finds the passages in the text."""
    server = Server(tmp_path, "--split-prompts", "passages")
    questions = [{"question": QUESTION, "ctxs": [{"title": document.title, "text": f"{document.text} " * 3} for document in DOCUMENTS]}]
    (tmp_path / "questions.json").write_text(json.dumps(questions))

    def cached():
        """Of both rounds."""
        done = subprocess.run([sys.executable, ROOT / "python/examples/langchain_rag.py", f"{server.url}/v1",
                               tmp_path / "questions.json", "0"], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert re.search(r"first time: [\d.]+ s .*\nagain: [\d.]+ s to the first token, median of 1\n", done.stdout), done.stdout
        return [int(tokens) for tokens in re.findall(r" s +(\d+) of \d+ tokens cached  \S", done.stdout)]
    first = cached()
    wait_until(server.is_idle, "passages are stored")
    stored = cached()
    assert len(first) == len(stored) == 2 and all(again > first[0] for again in stored)
    assert server.log.read_text().count("ChatCompletions OK") == 4
    assert server.stop() == 0
