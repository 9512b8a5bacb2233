"""Full-text retrieval over a real index (tantivy) and a small lexical reranker."""

from __future__ import annotations

import random
from dataclasses import dataclass

import tantivy

DOCUMENTS = 4_000
WORDS_PER_DOCUMENT = 80
TERMS = 6_000


@dataclass(frozen=True)
class Passage:
    """A document found by the index, with its BM25 score."""

    doc_id: int
    score: float
    body: str


class KnowledgeBase:
    """An in-memory index over seeded documents whose terms follow a Zipf law."""

    def __init__(self, seed: int = 7) -> None:
        builder = tantivy.SchemaBuilder()
        builder.add_integer_field("doc_id", stored=True, indexed=True)
        builder.add_text_field("body", stored=True)
        self._index = tantivy.Index(builder.build())
        self._rng = random.Random(seed)
        writer = self._index.writer(heap_size=50_000_000, num_threads=1)
        for doc_id in range(DOCUMENTS):
            writer.add_document(tantivy.Document(doc_id=doc_id, body=self._text()))
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()

    def _text(self) -> str:
        return " ".join(zipf_term(self._rng) for _ in range(WORDS_PER_DOCUMENT))

    def search(self, query: str, limit: int = 20) -> list[Passage]:
        """Return the best passages for the words of `query`."""
        searcher = self._index.searcher()
        hits = searcher.search(self._index.parse_query(query, ["body"]), limit).hits
        found = []
        for score, address in hits:
            document = searcher.doc(address)
            found.append(Passage(document["doc_id"][0], float(score), document["body"][0]))
        return found


def zipf_term(rng: random.Random) -> str:
    """Draw a term with a probability that falls about as 1/rank."""
    return f"t{int(TERMS ** rng.random())}"


def query_for(index: int) -> str:
    """Return the query of task `index`: eight seeded terms."""
    rng = random.Random(f"query {index}")
    return " ".join(zipf_term(rng) for _ in range(8))


def rerank(query: str, passages: list[Passage], keep: int) -> list[Passage]:
    """Order passages by the share of query terms they hold, then by BM25 score."""
    terms = set(query.split())

    def key(passage: Passage) -> tuple[float, float]:
        body = set(passage.body.split())
        return len(terms & body) / len(terms), passage.score

    return sorted(passages, key=key, reverse=True)[:keep]
