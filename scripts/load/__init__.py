"""Load on an embedding or reranker server, and what came of it. Never repeats a request by itself.

``await run(target, shapes)`` for tests and demonstrations, ``python -m scripts.load`` for a person.
"""

from scripts.load.generator import run
from scripts.load.results import Kind, Result, Summary
from scripts.load.shapes import Closed, Open, Shape
from scripts.load.target import Target

__all__ = ["Closed", "Kind", "Open", "Result", "Shape", "Summary", "Target", "run"]
