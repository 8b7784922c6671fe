"""The ONNX files that the embedded cluster's Triton serves, made once and kept in the cache."""

from pathlib import Path

from local.images import engine
from local.onnx_models import bert
from local.report import Reporter
from local.toolchain.cache import Entry, content_key

#: Files of the folder that `ensure` gives.
EMBEDDER, RERANKER, TOKENIZER = "embedder.onnx", "reranker.onnx", "tokenizer.json"


def ensure(reporter: Reporter) -> Path:
    """Folder with EMBEDDER (all-MiniLM-L6-v2, its own weights), RERANKER (a stand-in on them) and TOKENIZER; 181 MB.

    Raises ToolchainError.
    """
    source = Path(bert.__file__).read_bytes()
    entry = Entry("model-minilm-onnx", content_key([engine.MODEL_LOCK.read_bytes(), source]))

    def produce(_work: Path, out: Path) -> None:
        model = engine.model_files(reporter)
        bert.write(model, out / EMBEDDER, out / RERANKER)
        (out / TOKENIZER).write_bytes((model / "tokenizer.json").read_bytes())

    return entry.obtain(reporter, produce, "model: all-MiniLM-L6-v2 as ONNX")
