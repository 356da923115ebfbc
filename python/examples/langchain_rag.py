"""A plain LangChain chain for retrieval-augmented generation, as anybody has it: a retriever, a prompt, ChatOpenAI. Nothing in it
knows kvblend; what changes from server to server is the base URL.

    pip install langchain-openai
    python langchain_rag.py http://127.0.0.1:8000/v1 questions.json [SECONDS]

questions.json: a list of {"question", "ctxs": [{"title", "text"}]}, as in tests/fixtures/musique_sample.json. All questions
are asked, and then, after so many SECONDS (15) in which the server stores what it has computed, all again in other words, so
that the same passages come back in other prompts. Prints for each the time to the first token as the client sees it, and the answer.
"""

import json
import re
import statistics
import sys
import time

from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_openai import ChatOpenAI

SYSTEM_TEXT = "Answer the question based on the given passages, with a few words only."


def words_of(text):
    return set(re.findall(r"\w+", text.lower()))


class WordRetriever(BaseRetriever):
    """The passages that share the most words with the question; a word counts the more, the fewer passages have it."""

    documents: list[Document]
    k: int = 5

    def _get_relevant_documents(self, query, *, run_manager):
        found = [words_of(document.page_content) for document in self.documents]
        weights = {word: 1 / (1 + sum(word in words for words in found)) for word in words_of(query)}
        scores = [sum(weights[word] for word in weights.keys() & words) for words in found]
        best = sorted(range(len(found)), key=lambda index: -scores[index])[:self.k]
        return [self.documents[index] for index in best]


def to_messages(inputs):
    """Each passage is a text part of its own, which OpenAI's API has always allowed."""
    parts = [f"{document.metadata['title']}\n{document.page_content}\n\n" for document in inputs["context"]]
    parts.append(f"Question: {inputs['question']}")
    return [SystemMessage(SYSTEM_TEXT), HumanMessage([{"type": "text", "text": part} for part in parts])]


def main(base_url, path, pause_seconds="15"):
    with open(path, encoding="utf-8") as file:
        questions = json.load(file)
    documents = [Document(passage["text"], metadata={"title": passage["title"]})
                 for question in questions for passage in question["ctxs"]]
    llm = ChatOpenAI(base_url=base_url, api_key="none", model="", temperature=0, max_tokens=16)
    chain = {"context": WordRetriever(documents=documents), "question": RunnablePassthrough()} | RunnableLambda(to_messages) | llm
    seconds = {"first time": [], "again": []}
    for when, asked in (("first time", "{}"), ("again", "Please tell me: {}")):
        for question in questions:
            words = asked.format(question["question"])
            start, answer = time.perf_counter(), ""
            for chunk in chain.stream(words):
                if chunk.content and not answer:
                    seconds[when].append(time.perf_counter() - start)
                answer += chunk.content
            print(f"{seconds[when][-1]:6.3f} s  {words}\n{'':10}{' '.join(answer.split())}")
        time.sleep(float(pause_seconds))
    for when, times in seconds.items():
        print(f"{when}: {statistics.median(times):.3f} s to the first token, median of {len(times)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
