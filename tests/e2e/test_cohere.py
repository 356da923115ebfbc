"""POST /v2/chat through Cohere's own client."""

import asyncio

import cohere
import pytest
from cohere.core.api_error import ApiError

from conftest import CHUNKS, QUESTION, SYSTEM_TEXT

DOCUMENTS = [{"id": f"passage-{number}", "data": {"text": text.strip()}} for number, text in enumerate(CHUNKS)]
MESSAGES = [{"role": "system", "content": SYSTEM_TEXT}, {"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def client(server):
    return cohere.ClientV2(api_key="none", base_url=f"http://127.0.0.1:{server.api_port}", timeout=120)


def ask(**arguments):
    """Full prefill, whose answers do not depend on what was stored meanwhile; this one quotes."""
    extension = {"additional_body_parameters": {"kvblend": {"blend": {"reuse": "nothing"}}}}
    return {"model": "", "messages": MESSAGES, "documents": DOCUMENTS, "temperature": 0, "max_tokens": 40,
            "request_options": extension, **arguments}


def check(text, citations, only_copied=False):
    assert citations
    copied = 0
    for citation in citations:
        assert text[citation.start:citation.end] == citation.text
        for source in citation.sources:
            passage = CHUNKS[int(source.id.removeprefix("passage-"))]
            assert source.document["text"] == passage.strip()
            copied += citation.text.lower() in passage.lower()
            assert copied or not only_copied
    assert copied


def test_an_answer_names_what_it_copied(v1, server, client):
    answer = client.chat(**ask())
    text = answer.message.content[0].text
    check(text, answer.message.citations)
    assert answer.finish_reason in ("COMPLETE", "MAX_TOKENS")
    prompt = v1.Prompt(system_text=SYSTEM_TEXT, chunks=[f"{text.strip()}\n\n" for text in CHUNKS], question=QUESTION)
    _, expected, _, finished = server.generate(v1.GenerateRequest(
        prompt=prompt, blend=v1.BlendOptions(reuse="REUSE_NOTHING"), sampling=v1.SamplingOptions(max_tokens=40, top_p=0.75)))
    assert text == expected
    assert answer.usage.tokens.input_tokens == finished.usage.prompt_tokens
    assert answer.usage.tokens.output_tokens == finished.usage.completion_tokens
    assert client.chat(**ask(citation_options={"mode": "OFF"})).message.citations is None


def test_a_clause_is_cited_by_attention(client):
    """What is too common to be a copy: the model attends to where it stands."""
    question = [MESSAGES[0], {"role": "user", "content": "In which year was the harbour of Westhaven built? Answer with the year only."}]
    answers = {mode: client.chat(**{**ask(citation_options={"mode": mode}, max_tokens=12), "messages": question})
               for mode in ("FAST", "ACCURATE")}
    texts = {answer.message.content[0].text for answer in answers.values()}
    assert len(texts) == 1  # measuring changes nothing
    text = texts.pop()
    copied, attended = (answers[mode].message.citations or [] for mode in ("FAST", "ACCURATE"))
    assert len(attended) > len(copied), (text, attended)
    assert "passage-0" in {source.id for citation in attended for source in citation.sources}, (text, attended)
    assert all(text[citation.start:citation.end] == citation.text for citation in attended)


def test_a_stream_says_the_same(client):
    whole = client.chat(**ask())
    events = list(client.chat_stream(**ask()))
    types = [event.type for event in events]
    assert types[:2] == ["message-start", "content-start"] and types[-1] == "message-end"
    text = "".join(event.delta.message.content.text for event in events if event.type == "content-delta")
    assert text == whole.message.content[0].text
    citations = [event.delta.message.citations for event in events if event.type == "citation-start"]
    check(text, citations)
    assert [citation.text for citation in citations] == [citation.text for citation in whole.message.citations]
    assert events[-1].delta.finish_reason == whole.finish_reason
    assert events[-1].delta.usage.tokens.output_tokens == whole.usage.tokens.output_tokens


def test_a_conversation_and_plain_texts(client):
    answer = client.chat(model="", documents=[CHUNKS[0]], temperature=0, max_tokens=8, logprobs=True, seed=3, messages=[
        {"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": [{"type": "text", "text": "Who built the harbour?"}]}])
    assert answer.finish_reason == "MAX_TOKENS"
    assert len(answer.logprobs) == 8 and all(piece.logprobs[0] <= 0 for piece in answer.logprobs)


def test_an_answer_is_sent_back_as_it_is(client):
    answer = client.chat(**ask())
    assert answer.message.citations
    for message in (answer.message, answer.message.model_dump(), answer.message.model_dump(exclude_none=True)):
        turns = [*MESSAGES, message, {"role": "user", "content": "And what else?"}]
        assert client.chat(**{**ask(max_tokens=2), "messages": turns}).message.content


def test_the_asynchronous_client(server):
    async def go():
        asynchronous = cohere.AsyncClientV2(api_key="none", base_url=f"http://127.0.0.1:{server.api_port}", timeout=120)
        answers = await asyncio.gather(*(asynchronous.chat(**ask(max_tokens=4)) for _ in range(4)))
        return {answer.message.content[0].text for answer in answers}
    assert len(asyncio.run(go())) == 1


def test_refusals(client):
    for arguments, named in (({"p": 7}, "p is 7"), ({"model": "command-r"}, "command-r"), ({"messages": []}, "messages"),
                             ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
                             ({"temperature": 11}, "temperature")):
        with pytest.raises(ApiError) as error:
            client.chat(**ask(**arguments))
        assert error.value.status_code in (400, 404)
        assert named in error.value.body["message"], error.value.body
