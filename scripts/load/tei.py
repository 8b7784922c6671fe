"""Requests and answers of TEI's HTTP API (1.9.3; recordings: tests/data/tei-1.9.3).

Answers are checked by counting their brackets and commas: parsing the numbers of 32 vectors takes longer than serving
them does on a GPU, and the generator would measure itself.
"""

import json
import random
from collections.abc import Callable

from infra.core.catalogue import ModelKind
from scripts.command import CommandError
from scripts.load.target import Target

PATHS = {ModelKind.EMBEDDING: "/embed", ModelKind.SPARSE: "/embed_sparse", ModelKind.RERANKER: "/rerank"}

#: Each is one token of BERT's English vocabulary, and nearly always one elsewhere.
_WORDS = (
    *("the", "of", "and", "to", "in", "for", "with", "on", "at", "from", "by", "about", "into", "over", "after"),
    *("city", "water", "house", "river", "school", "money", "story", "night", "world", "power", "music", "paper"),
    *("market", "history", "family", "company", "country", "machine", "science", "letter", "garden", "winter"),
    *("summer", "village", "doctor", "teacher", "student", "question", "answer", "number", "problem", "system"),
    *("service", "project", "engine", "model", "language"),
)
_QUERY_WORDS = 6
#: [CLS] and [SEP]; a pair has one [SEP] more.
_TEXT_SPECIAL, _PAIR_SPECIAL = 2, 3

#: Different bodies that a load cycles through. TEI caches no answers.
_BODIES = 100
_BODY_BYTES = 8 * 2**20
_BYTES_PER_WORD = 7
#: What lists of numbers are made of.
_OF_NUMBERS = b"0123456789+-.eE,[] \r\n\t"


def bodies(target: Target) -> list[bytes]:
    """Request bodies; with the same target the same ones. Raises CommandError where the texts cannot be so short."""
    special = _PAIR_SPECIAL + _QUERY_WORDS if target.kind is ModelKind.RERANKER else _TEXT_SPECIAL
    if target.tokens.p50 <= special:
        what = f"a query of {_QUERY_WORDS} words, " if target.kind is ModelKind.RERANKER else ""
        raise CommandError(
            f"tokens: got {target.tokens.p50}; allowed: {special + 1} or more, {what}special tokens and a word"
        )
    longest = target.texts * target.tokens.longest * _BYTES_PER_WORD
    count = max(1, min(_BODIES, _BODY_BYTES // longest))
    lengths = target.lengths(count * target.texts)
    words = random.Random(target.seed)  # noqa: S311 - not for secrets
    made = []
    for first in range(0, len(lengths), target.texts):
        texts = [_text(words, tokens - special) for tokens in lengths[first : first + target.texts]]
        match target.kind:
            case ModelKind.RERANKER:
                body: dict[str, object] = {"query": _text(words, _QUERY_WORDS), "texts": texts}
            case _:
                body = {"inputs": texts}
        made.append(json.dumps(body).encode())
    return made


def _text(words: random.Random, count: int) -> str:
    return " ".join(words.choices(_WORDS, k=count))


def checker(target: Target) -> Callable[[bytes], str | None]:
    """What is wrong with the body of an answer 200, in words; None for one that is as it should be."""
    match target.kind:
        case ModelKind.RERANKER:
            return lambda body: _ranks(body, target.texts)
        case ModelKind.SPARSE:
            return lambda body: _sparse(body, target.texts)
        case _:
            return lambda body: _vectors(body, target.texts, target.dimension)


def _vectors(body: bytes, texts: int, dimension: int | None) -> str | None:
    body = body.strip()
    if not (body.startswith(b"[[") and body.endswith(b"]]")):
        return "no list of vectors"
    if body.translate(None, _OF_NUMBERS):
        return "a number is null: the engine computed NaN or infinity" if b"null" in body else "not only numbers"
    vectors = body.count(b"[") - 1
    if vectors != texts or body.count(b"]") - 1 != texts:
        return f"{vectors} vectors for {texts} texts"
    numbers = body.count(b",") + 1
    if numbers % texts or (dimension is not None and numbers != texts * dimension):
        return f"{numbers} numbers for {texts} texts" + (f" of {dimension} dimensions" if dimension else "")
    return None


def _sparse(body: bytes, texts: int) -> str | None:
    body = body.strip()
    if not (body.startswith(b"[[") and body.endswith(b"]]")):
        return "no list of sparse vectors"
    if b"null" in body:
        return "a weight is null: the engine computed NaN or infinity"
    if body.count(b"[") - 1 != texts:
        return f"{body.count(b'[') - 1} sparse vectors for {texts} texts"
    if not body.count(b"{") == body.count(b'"index"') == body.count(b'"value"'):
        return "entries without an index or a value"
    return None


def _ranks(body: bytes, texts: int) -> str | None:
    try:
        ranks = json.loads(body)
        indices = sorted(rank["index"] for rank in ranks)
        if not all(isinstance(rank["score"], float | int) for rank in ranks):
            return "a score is no number: the engine computed NaN or infinity"
    except (ValueError, KeyError, TypeError):
        return "no list of scores"
    if indices != list(range(texts)):
        return f"{len(indices)} scores for {texts} texts, or not one per text"
    return None
