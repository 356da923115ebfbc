"""A plain LangChain chain for retrieval-augmented generation, as anybody has it: a retriever, a prompt into which the passages are
pasted, ChatOpenAI. Nothing in it knows kvblend; what changes from server to server is the base URL.

    pip install langchain-openai
    python langchain_rag.py http://127.0.0.1:8000/v1 questions.json [SECONDS]

A server with keys, as `kvblend serve` makes one, wants its own in OPENAI_API_KEY.

questions.json: a list of {"question", "ctxs": [{"title", "text"}]}, as in tests/fixtures/musique_sample.json. All questions
are asked, and then, after so many SECONDS (15) in which the server stores what it has computed, all again in other words and
with the best passage last, so that the same passages come back in other prompts. Prints for each the time to the first token as
the client sees it, how many tokens of the prompt the server says it had in its cache, and the answer.
"""

import json
import os
import re
import statistics
import sys
import time
from dataclasses import dataclass

from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_openai import ChatOpenAI

PROMPT = ("Use the following pieces of context to answer the question at the end, with a few words only. If you don't know the "
          "answer, just say that you don't know, don't try to make up an answer.\n\n{context}\n\nQuestion: {question}\n"
          "Helpful Answer:")


def words_of(text):
    return set(re.findall(r"\w+", text.lower()))


class WordRetriever(BaseRetriever):
    """The passages that share the most words with the question; a word counts the more, the fewer passages have it."""

    documents: list[Document]
    k: int = 10
    best_last: bool = False

    def _get_relevant_documents(self, query, *, run_manager):
        found = [words_of(document.page_content) for document in self.documents]
        weights = {word: 1 / (1 + sum(word in words for words in found)) for word in words_of(query)}
        scores = [sum(weights[word] for word in weights.keys() & words) for words in found]
        best = sorted(range(len(found)), key=lambda index: -scores[index])[:self.k]
        return [self.documents[index] for index in (reversed(best) if self.best_last else best)]


def paste(documents):
    """The passages as one text, as LangChain's own chains do it."""
    return "\n\n".join("\n".join(filter(None, [document.metadata.get("title"), document.page_content])) for document in documents)


def make_chain(base_url, retriever):
    llm = ChatOpenAI(base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"), model="", temperature=0, max_tokens=16,
                     stream_usage=True)
    return ({"context": retriever | RunnableLambda(paste), "question": RunnablePassthrough()}
            | ChatPromptTemplate.from_template(PROMPT) | llm)


@dataclass
class Asked:
    """What the client saw: seconds to the first token, the answer, tokens of the prompt and those that were in the server's cache."""

    seconds: float
    answer: str
    tokens: int
    cached: int

    def __str__(self):
        return f"{self.seconds:6.3f} s  {self.cached:5} of {self.tokens} tokens cached  {' '.join(self.answer.split())}"


def ask(chain, question):
    start, seconds, whole = time.perf_counter(), None, None
    for piece in chain.stream(question):
        if piece.content and seconds is None:
            seconds = time.perf_counter() - start
        whole = piece if whole is None else whole + piece
    usage = whole.usage_metadata
    return Asked(seconds, whole.content, usage["input_tokens"], usage.get("input_token_details", {}).get("cache_read", 0))


def main(base_url, path, pause_seconds="15"):
    with open(path, encoding="utf-8") as file:
        questions = json.load(file)
    documents = [Document(passage["text"], metadata={"title": passage["title"]})
                 for question in questions for passage in question["ctxs"]]
    medians = {}
    for when, form, best_last in (("first time", "{}", False), ("again", "Please tell me: {}", True)):
        chain = make_chain(base_url, WordRetriever(documents=documents, best_last=best_last))
        seconds = []
        for question in questions:
            words = form.format(question["question"])
            asked = ask(chain, words)
            seconds.append(asked.seconds)
            print(f"{words}\n{asked}")
        medians[when] = statistics.median(seconds)
        time.sleep(float(pause_seconds))
    for when, median in medians.items():
        print(f"{when}: {median:.3f} s to the first token, median of {len(questions)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
