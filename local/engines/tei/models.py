"""Which models the stand-in serves, and what it claims about each.

A local directory is served as it is (BERT family). Of the Hugging Face ids only all-MiniLM-L6-v2 has its own weights
here; the other ids of the table are served with those weights and say so in the log and in `/info`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from local.engines.tei.bert import Bert, Floats, TokenizedInput, normalized, pool

MINILM_ID = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_DIRECTORY = "all-minilm-l6-v2"
_CLS, _SEP = 101, 102
#: [PAD], [UNK], [CLS], [SEP], [MASK]: no words.
_SPECIAL = [0, 100, _CLS, _SEP, 103]


def models_directory() -> Path:
    """Where the model files lie: STAND_IN_MODELS, in the image /opt/stand-in/models."""
    return Path(os.environ.get("STAND_IN_MODELS", "/opt/stand-in/models"))


@dataclass(frozen=True)
class Substitute:
    """A model whose own weights are not here.

    Pooling and length are those of the real model (its config.json and 1_Pooling/config.json); MiniLM computes.
    """

    kind: str
    max_input_length: int
    pooling: str = "mean"


SUBSTITUTES = {
    "BAAI/bge-small-en-v1.5": Substitute("embedding", 512, "cls"),
    "intfloat/e5-small-v2": Substitute("embedding", 512),
    "BAAI/bge-reranker-base": Substitute("reranker", 512),
    "BAAI/bge-reranker-large": Substitute("reranker", 512),
    "BAAI/bge-reranker-v2-m3": Substitute("reranker", 8192),
    "cross-encoder/ms-marco-MiniLM-L-6-v2": Substitute("reranker", 512),
    "naver/efficient-splade-VI-BT-large-doc": Substitute("sparse", 512, "splade"),
    "naver/efficient-splade-VI-BT-large-query": Substitute("sparse", 512, "splade"),
}


def substitute(model_id: str) -> Substitute | None:
    """The table's row, unless a local directory of that name is served."""
    return None if Path(model_id).is_dir() else SUBSTITUTES.get(model_id)


def refusal(model_id: str) -> str:
    known = ", ".join([MINILM_ID, *SUBSTITUTES])
    return (
        f"model {model_id!r} cannot be served: this is a stand-in for text-embeddings-router with MiniLM weights only, "
        f"it serves {known}, or a local directory with config.json, tokenizer.json and model.safetensors"
    )


def sentence(model_id: str) -> str:
    """The plain statement for the log and for `/info`."""
    base = "This is a stand-in for text-embeddings-router 1.9.3 that computes with all-MiniLM-L6-v2 on the CPU, no GPU"
    if Path(model_id).is_dir():
        return f"This is a stand-in for text-embeddings-router 1.9.3; it computes on the CPU, no GPU, from {model_id}"
    row = substitute(model_id)
    if row is None:
        return f"{base}; these are the model's own weights"
    if row.kind == "reranker":
        return f"{base}; scores for {model_id} come from the cosine similarity of MiniLM vectors, not from that model"
    if row.kind == "sparse":
        return f"{base}; weights for {model_id} are of the text's own tokens, by MiniLM: no expansion as by that model"
    return f"{base}; vectors for {model_id} are mean-pooled MiniLM vectors, not that model's"


class CosineReranker:
    """Scores (query, text) pairs by the cosine similarity of their MiniLM vectors, so that the order is meaningful.

    The cosine c becomes the logit 10 (2 c - 1): sigmoid maps it to 0.5 at c = 0.5 and does not saturate in between.
    Each side is cut to the positions that MiniLM has (512).
    """

    def __init__(self, bert: Bert) -> None:
        self._bert = bert

    def logits(self, batch: Sequence[TokenizedInput]) -> list[Floats]:
        queries: list[TokenizedInput] = []
        texts: list[TokenizedInput] = []
        for item in batch:
            split = list(item.type_ids).index(1) if 1 in item.type_ids else len(item.ids)
            queries.append(self._single(item.ids[:split]))
            texts.append(self._single([_CLS, *(item.ids[split:] or [_SEP])]))
        pairs = zip(self._vectors(queries), self._vectors(texts), strict=True)
        return [np.array([10 * (2 * float(query @ text) - 1)], dtype=np.float32) for query, text in pairs]

    def _vectors(self, batch: Sequence[TokenizedInput]) -> list[Floats]:
        return [normalized(pool(states, "mean")) for states in self._bert.hidden_states(batch)]

    def _single(self, ids: Sequence[int]) -> TokenizedInput:
        kept = list(ids[: self._bert.max_positions])
        return TokenizedInput(kept, [0] * len(kept))


class TokenWeights:
    """Sparse vectors of the size of the vocabulary: a weight for each token of the text, and for no other.

    SPLADE's log(1 + relu(x)), maximum over the places of a token; x is not a logit of a language model, which MiniLM
    does not have, but the cosine of the token's state with the mean of all: what the text is about weighs more.
    """

    def __init__(self, bert: Bert) -> None:
        self._bert = bert

    def weights(self, batch: Sequence[TokenizedInput]) -> list[Floats]:
        return [self._of(item.ids, states) for item, states in zip(batch, self._bert.hidden_states(batch), strict=True)]

    def _of(self, ids: Sequence[int], states: Floats) -> Floats:
        mean = normalized(pool(states, "mean"))
        lengths = np.linalg.norm(states, axis=1)
        weights = np.zeros(self._bert.vocabulary, dtype=np.float32)
        np.maximum.at(weights, np.asarray(ids), np.log1p(np.maximum(states @ mean / lengths, 0)))
        weights[_SPECIAL] = 0
        return weights
