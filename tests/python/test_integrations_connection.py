"""Which server a model of LangChain's or LlamaIndex's asks, after its fields were changed, or it was
copied."""

import asyncio
import copy
import importlib.util
import json
import pickle

import pytest

from conftest import DONE, QUESTION, TEXT

MISSING = [name for name in ("langchain_core", "llama_index") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; "
                                "tests/python/run.sh --integrations installs them")
if not MISSING:
    from langchain_core.documents import Document
    from llama_index.core.llms import ChatMessage
    from pydantic import SecretStr, ValidationError

    from kvblend.integrations.langchain import ChatKVBlend
    from kvblend.integrations.llamaindex import KVBlend

LAST = {"choices": [{"delta": {}}], "kvblend": {"prompt": {}, "finished": {"reason": "FINISH_REASON_END_OF_TEXT"}}}


class LangChain:
    def make(self, **fields):
        return ChatKVBlend(**fields)

    def key(self, text):
        return SecretStr(text)

    def ask(self, model):
        return model.invoke(QUESTION).response_metadata["model_name"]

    async def ask_in_a_loop(self, model):
        return (await model.ainvoke(QUESTION)).response_metadata["model_name"]


class LlamaIndex:
    def make(self, **fields):
        return KVBlend(**fields)

    def key(self, text):
        return text

    def ask(self, model):
        return model.complete(QUESTION) and None

    async def ask_in_a_loop(self, model):
        return await model.acomplete(QUESTION) and None


@pytest.fixture(name="framework", params=[LangChain, LlamaIndex])
def framework_fixture(request):
    return request.param()


@pytest.fixture(name="servers")
def servers_fixture(canned, another):
    """(url, server, what it calls its model), twice."""
    for name, server in (("first", canned), ("second", another)):
        server.key = None
        server.answer = (200, {}, f"{TEXT}data: {json.dumps(LAST)}\n\n{DONE}")
        server.answer_to_get = (200, {}, json.dumps({"data": [{"id": name}]}))
    yield [(f"http://127.0.0.1:{server.server_address[1]}", server, name) for name, server in (("first", canned), ("second", another))]
    canned.answer_to_get = another.answer_to_get = None


def asked(framework, model, server):
    """(key, name of the model in the answer) of a call, and of one in a loop."""
    told = []
    for ask in (framework.ask, lambda model: asyncio.run(framework.ask_in_a_loop(model))):
        server.key = None
        name = ask(model)
        told.append((server.key, name))
    assert told[0] == told[1]
    return told[0]


def names(framework, name):
    return name if isinstance(framework, LangChain) else None


def test_a_model_asks_the_server_that_its_fields_name(framework, servers):
    (first, one, first_name), (second, other, second_name) = servers
    model = framework.make(base_url=first, api_key="A")
    assert asked(framework, model, one) == ("Bearer A", names(framework, first_name))
    model.api_key = framework.key("B")
    assert asked(framework, model, one) == ("Bearer B", names(framework, first_name))
    model.base_url = second
    assert asked(framework, model, other) == ("Bearer B", names(framework, second_name))


def test_a_copy_of_a_model_asks_the_server_that_it_names(framework, servers):
    """Both go on, each with its own; a key is as it was given to the copy."""
    (first, one, first_name), (second, other, second_name) = servers
    model = framework.make(base_url=first, api_key="A")
    assert asked(framework, model, one) == ("Bearer A", names(framework, first_name))
    changed = model.model_copy(update={"base_url": second, "api_key": "B"})
    for _ in range(2):
        assert asked(framework, changed, other) == ("Bearer B", names(framework, second_name))
        assert asked(framework, model, one) == ("Bearer A", names(framework, first_name))


def test_a_model_that_was_used_keeps_its_client(framework, servers):
    (url, _, _), _ = servers
    model = framework.make(base_url=url)
    framework.ask(model)
    client = model._kept.client  # pylint: disable=protected-access
    model.max_tokens = 7
    framework.ask(model)
    assert model._kept.client is client  # pylint: disable=protected-access


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda model: model.model_copy(deep=True),
                                    lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "deepcopy", "model_copy", "pickle"])
def test_a_model_that_was_used_can_be_copied(framework, servers, copied, caplog):
    (url, server, name), _ = servers
    model = framework.make(base_url=url, api_key="A", max_tokens=9)
    framework.ask(model)
    other = copied(model)
    assert asked(framework, other, server) == ("Bearer A", names(framework, name)) and other.max_tokens == 9
    assert caplog.records == []


@pytest.mark.parametrize("field", ["max_token", "tempereture"])
def test_a_field_that_there_is_none_of_is_refused_by_name(framework, field):
    with pytest.raises(ValidationError, match=field):
        framework.make(**{field: 1})


@pytest.mark.parametrize("documents", ["one text", pytest.param(None, id="one document")])
def test_one_document_is_no_list_of_them(documents):
    """Every character would be one, or every field of it."""
    with pytest.raises(TypeError, match="documents is a (str|Document); allowed: a list of Document"):
        ChatKVBlend().invoke(QUESTION, documents=documents or Document("one text"))


def test_one_text_is_no_list_of_chunks():
    messages = [ChatMessage(role="user", content=QUESTION)]
    for ask in (KVBlend().chat, KVBlend().stream_chat):
        with pytest.raises(TypeError, match="chunks is a str; allowed: a list of str"):
            ask(messages, chunks="one text")
