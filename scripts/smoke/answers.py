"""What answers of an embedding server have to be, whatever protocol they came by."""

import math
import re
from collections.abc import Mapping, Sequence

from infra.core.contract import WorkloadContract
from scripts.smoke.results import NotProvenError, UnmetError

#: Float16 vectors have a norm of 1 within a few thousandths.
_NORM_TOLERANCE = 5e-3

#: Characters of an API key; shorter ones are part of ordinary words and numbers.
LEAST_KEY = 8

QUESTION = "How do I reset my password?"
SIMILAR = "I forgot my password and cannot log in."
UNRELATED = "The recipe needs two ripe bananas and a cup of flour."

QUERY = "What is the capital of France?"
#: One of them answers the query.
TEXTS = (UNRELATED, "Paris is the capital of France.", "The train to Hamburg leaves at noon.")
_BEST = 1

_COUNTER = re.compile(r"^te_request_count(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


def as_planned(told: Mapping[str, object], planned: Mapping[str, object]) -> None:
    """Raises UnmetError unless the process says of itself what was planned."""
    differing = [
        f"{key} is {told.get(key)!r}, planned {value!r}" for key, value in planned.items() if told.get(key) != value
    ]
    if differing:
        raise UnmetError(
            "; ".join(differing),
            "the pods do not run what the contract says: run pulumi up, and look for env in the stack file that "
            "overrides the plan",
        )


def dimension_and_norm(vector: Sequence[float], workload: WorkloadContract) -> str:
    """Length of a vector, and that it is normalised; says what it found.

    Raises UnmetError, and NotProvenError when the contract does not know the length.
    """
    norm = math.sqrt(sum(value * value for value in vector))
    if not math.isclose(norm, 1, abs_tol=_NORM_TOLERANCE):
        raise UnmetError(
            f"the L2 norm is {norm:.4f}, not 1",
            "vectors without norm 1 break indexes that use the dot product; check the model's files and dtype",
        )
    if workload.model.dimension is None:
        raise NotProvenError(f"norm 1; {len(vector)} dimensions, and the contract does not say how many are right")
    if len(vector) != workload.model.dimension:
        raise UnmetError(
            f"{len(vector)} dimensions, the contract says {workload.model.dimension}",
            f"the engine serves another model than {workload.model.id}, or the stack file has a wrong dimension",
        )
    return f"{len(vector)} dimensions, L2 norm {norm:.4f}"


def meaning(question: Sequence[float], similar: Sequence[float], unrelated: Sequence[float]) -> str:
    """That the vectors of the three texts mean something: weights that were not loaded give vectors too.

    Raises UnmetError.
    """
    near, far = _cosine(question, similar), _cosine(question, unrelated)
    if not near > far:
        raise UnmetError(
            f"a similar text has cosine {near:.3f}, an unrelated one {far:.3f}",
            "the vectors carry no meaning: check revision and pooling of the model, and the engine's log",
        )
    return f"cosine {near:.3f} for a similar text, {far:.3f} for an unrelated one"


def order(ranks: Sequence[tuple[int, float]], asked: str, workload: WorkloadContract, logs: str) -> str:
    """That index and score of each of TEXTS came, the one that answers QUERY first. Raises UnmetError."""
    if sorted(index for index, _ in ranks) != list(range(len(TEXTS))):
        raise UnmetError(f"{asked}: not one score per text", f"is {workload.model.id} a reranker? {logs}")
    scores = [score for _, score in ranks]
    if not all(math.isfinite(score) for score in scores) or scores != sorted(scores, reverse=True):
        raise UnmetError(f"{asked}: scores {scores} are not sorted, best first", f"read {logs}")
    best, score = ranks[0]
    if best != _BEST:
        raise UnmetError(
            f"{TEXTS[best]!r} came before {TEXTS[_BEST]!r} for {QUERY!r}",
            "the scores carry no meaning: check the model's revision and the engine's log",
        )
    return f"the answer to the query comes first of {len(ranks)}, score {score:.4f}"


def requests_counted(metrics: str) -> float:
    """te_request_count in the text that Prometheus reads; 0 before the first request."""
    return sum(float(count) for count in _COUNTER.findall(metrics))


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))
