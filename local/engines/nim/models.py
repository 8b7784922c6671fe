"""Which models the stand-in serves, and what it claims about each. A test compares with the blueprint's table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """A model as its NIM serves it. ``dimension`` is None for rerankers; tokens are those of MiniLM's tokenizer."""

    id: str
    max_tokens: int
    dimension: int | None = None
    #: Clients may ask for fewer dimensions.
    dynamic: bool = False


MODELS = {
    model.id: model
    for model in (
        Model("nvidia/nv-embedqa-e5-v5", 512, 1024),
        Model("nvidia/llama-3.2-nv-embedqa-1b-v2", 8192, 2048, dynamic=True),
        Model("nvidia/llama-nemotron-embed-1b-v2", 8192, 2048, dynamic=True),
        Model("nvidia/nemotron-3-embed-1b", 4096, 2048),
        Model("nvidia/llama-3.2-nv-rerankqa-1b-v2", 8192),
        Model("nvidia/llama-nemotron-rerank-1b-v2", 8192),
        Model("nvidia/llama-nemotron-rerank-vl-1b-v2", 8192),
    )
}


def sentence(model: Model, version: str) -> str:
    """The plain statement for the log, the header x-stand-in and /v1/models."""
    computes = (
        "scores come from the cosine similarity of MiniLM vectors"
        if model.dimension is None
        else "vectors are MiniLM's 384 numbers and then zeros"
    )
    return (
        f"This is a stand-in for the NIM {model.id}:{version} that computes with all-MiniLM-L6-v2 on the CPU, no GPU; "
        f"{computes}, not that model's"
    )
