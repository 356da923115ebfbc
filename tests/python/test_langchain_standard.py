"""LangChain's own tests of chat models (the package langchain-tests) against ChatKVBlend.

What it can't do is what it does not declare: tools and structured output, which the suite sees from the methods that it does not
override; images, audio and PDF, which the suite takes for absent; another model for one call; and saving itself, for a key in it
would have to come from elsewhere. The suite skips those.
"""

import pytest

pytest.importorskip("langchain_tests", reason="not installed: langchain-tests; tests/python/run.sh --integrations installs it")
pytest.importorskip("langchain_core", reason="not installed: langchain-core; tests/python/run.sh --integrations installs it")

from langchain_core.documents import Document  # noqa: E402
from langchain_tests.integration_tests import ChatModelIntegrationTests  # noqa: E402
from langchain_tests.unit_tests import ChatModelUnitTests  # noqa: E402

from kvblend.integrations.langchain import ChatKVBlend  # noqa: E402

from conftest import DOCUMENTS, QUESTION, wait_until  # noqa: E402


def without_retries(params):
    """There are none in the class, which refuses what it does not have: with_retry() of LangChain's is for
    that."""
    return {name: value for name, value in params.items() if name != "max_retries"}


class TestUnit(ChatModelUnitTests):
    @property
    def standard_chat_model_params(self):
        return without_retries(super().standard_chat_model_params)

    @property
    def chat_model_class(self):
        return ChatKVBlend

    @property
    def chat_model_params(self):
        return {"model": "SmolLM2"}


class TestIntegration(ChatModelIntegrationTests):
    @property
    def standard_chat_model_params(self):
        return without_retries(super().standard_chat_model_params)

    @pytest.fixture(autouse=True)
    def started(self, server):
        self.url = server.url

    @property
    def chat_model_class(self):
        return ChatKVBlend

    @property
    def chat_model_params(self):
        return {"base_url": self.url, "max_tokens": 24}

    @property
    def supports_model_override(self):
        """A server has one model."""
        return False

    @property
    def supported_usage_metadata_details(self):
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream=False):
        """The answer to a prompt whose chunks are stored, as reported when they are."""
        model = ChatKVBlend(**self.chat_model_params, namespace="standard tests")
        documents = [Document(document.text, metadata={"title": document.title}) for document in DOCUMENTS]

        def answer():
            if not stream:
                return model.invoke(QUESTION, documents=documents)
            first, *rest = model.stream(QUESTION, documents=documents)
            return sum(rest, first)

        def reused():
            found = answer()
            return found if found.usage_metadata["input_token_details"]["cache_read"] > 0 else None
        return wait_until(reused, "chunks are stored behind the answer")
