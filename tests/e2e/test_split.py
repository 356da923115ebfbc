"""Chains that paste their passages into one string, and set one field more."""

import pytest

from conftest import FLAGS, prompt_of
from http_client import client_of

PASSAGES = [
    "The harbour of Westhaven was built in 1852 by the engineer Ada Lorne, who had studied in Delft and came back to the "
    "coast when the old pier was lost in a storm.",
    "Ada Lorne was born in the mountain village of Skarn, as the youngest of five, and learned to draw maps from a surveyor "
    "who lived above the mill.",
    "Skarn lies at the foot of Mount Hollen, which is 2,340 metres high, and is known for its cheese fair.\n\nThe fair is "
    "held on the last Sunday of September, and the road to the valley is closed for it.",
]
QUESTION = "Where was the engineer of the harbour of Westhaven born?"
# What LangChain's and LlamaIndex's own prompts look like.
PROMPTS = {
    "LangChain": "Use the following pieces of context to answer the question at the end. If you don't know the answer, say "
                 "so.\n\n{context}\n\nQuestion: {question}\nHelpful Answer:",
    "LlamaIndex": "Context information is below.\n---------------------\n{context}\n---------------------\nGiven the context "
                  "information and not prior knowledge, answer the query.\nQuery: {question}\nAnswer: ",
}


def ask(server, text, stored=False, **extension):
    """(the answer's text, the report, usage) of a chat completion by the official client."""
    extension["blend"] = {"store_misses": stored, "policy": "all"}
    answer = client_of(server).chat.completions.create(
        model="", messages=[{"role": "user", "content": text}], max_tokens=8, temperature=0, extra_body={"kvblend": extension})
    return answer.choices[0].message.content, answer.kvblend["prompt"], answer.usage


def test_stored_chunks_are_found_in_any_prompt(v1, server):
    namespace = {"namespace": "split-stored"}
    list(server.chunks.Put(v1.PutChunksRequest(chunks=PASSAGES, **namespace)))
    for name, form in PROMPTS.items():
        text = form.format(context="\n\n".join([PASSAGES[2], PASSAGES[0]]), question=QUESTION)
        said, report, usage = ask(server, text, split="stored", **namespace)
        sources = [chunk["source"] for chunk in report["chunks"]]
        assert sources == ["CHUNK_SOURCE_MISS", "CHUNK_SOURCE_BLENDED"] * 2, name
        # The same prompt, its parts given one by one, has the same tokens and the same answer.
        before, rest = text.split(PASSAGES[2])
        between, behind = rest.split(PASSAGES[0])
        explicit = v1.GenerateRequest(
            prompt=v1.Prompt(chunks=[before, PASSAGES[2], between, PASSAGES[0]], question=behind), **namespace,
            blend=v1.BlendOptions(store_misses=False, policy=v1.POLICY_ALL), sampling={"max_tokens": 8})
        expected, answer, _, _ = server.generate(explicit)
        assert [chunk["num_tokens"] for chunk in report["chunks"]] == [chunk.num_tokens for chunk in expected.chunks]
        assert [chunk["key"] for chunk in report["chunks"]][1::2] == [chunk.key for chunk in expected.chunks][1::2]
        assert usage.prompt_tokens == expected.prompt_tokens
        assert said == answer
        # Without the field it is one text; and in another namespace nothing is known.
        assert not ask(server, text, **namespace)[1]["chunks"]
        assert not ask(server, text, split="stored", namespace="split-other")[1]["chunks"]


@pytest.mark.parametrize("name", PROMPTS)
def test_an_unchanged_chain_gains_from_its_second_request_on(server, name):
    fields = {"namespace": f"split-{name}", "split": "passages"}
    first = PROMPTS[name].format(context="\n\n".join(PASSAGES), question=QUESTION)
    _, report, _ = ask(server, first, stored=True, **fields)
    assert not any("BLENDED" in chunk["source"] for chunk in report["chunks"])
    server.wait_until_idle()
    second = PROMPTS[name].format(context="\n\n".join(reversed(PASSAGES)), question="How high is Mount Hollen?")
    _, report, _ = ask(server, second, **fields)
    found = [chunk for chunk in report["chunks"] if chunk["source"] == "CHUNK_SOURCE_BLENDED"]
    assert len(found) >= 2


def test_split_is_refused_with_chunks_and_by_wrong_names(server):
    client = client_of(server)
    for extra, param in (({"documents": ["x"], "kvblend": {"split": "stored"}}, "prompt.split is stored and chunks has 1"),
                         ({"kvblend": {"split": "all"}}, "kvblend.split is 'all'; allowed: none, stored, passages")):
        with pytest.raises(Exception, match=param):
            client.chat.completions.create(model="", messages=[{"role": "user", "content": "x"}], extra_body=extra)


def test_a_server_that_splits_by_itself(v1, start_server):
    server = start_server(*FLAGS, "--split-prompts", "stored")
    list(server.chunks.Put(v1.PutChunksRequest(chunks=PASSAGES)))
    text = PROMPTS["LangChain"].format(context="\n\n".join(PASSAGES), question=QUESTION)
    assert len([chunk for chunk in ask(server, text)[1]["chunks"] if "BLENDED" in chunk["source"]]) == 3
    assert not ask(server, text, split="none")[1]["chunks"]
    report, _, _, _ = server.generate(v1.GenerateRequest(prompt=prompt_of(v1)))
    assert len(report.chunks) == 3, "a prompt with chunks is left alone"
