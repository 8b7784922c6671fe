"""A small query service: finds the passages of its corpus that are nearest to a question, by embeddings.

POST /query {"question": "...", "top": 3}  ->  {"passages": [{"text": "...", "score": 0.71}, ...]}
GET /ready                                 ->  200 once the corpus is embedded

It knows its engine by two environment variables, EMBED_URL and (where a key is needed) EMBED_API_KEY, which are the
same whether the engine is a sidecar of its pod or a workload of its own. It speaks TEI's API; with EMBED_MODEL, the
model name of the contract, it speaks OpenAI's, with the input_type that NIMs ask for. Standard library only.
"""

import json
import os
import signal
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(os.environ.get("PORT", "8000"))
ENGINE = os.environ.get("EMBED_URL", "").rstrip("/")
KEY = os.environ.get("EMBED_API_KEY")
MODEL = os.environ.get("EMBED_MODEL")
#: Above what the engine may take for one request.
TIMEOUT_SECONDS = 60
MOST_BYTES = 64 * 1024
MOST_PASSAGES = 10

CORPUS = (
    "The cat sleeps on the warm windowsill all afternoon.",
    "Interest rates were raised by a quarter of a percent.",
    "Kubernetes restarts containers whose liveness probe fails.",
    "Bread dough rises faster in a warm kitchen.",
    "The striker scored twice in the second half of the match.",
)


class EngineError(Exception):
    """The engine did not answer with vectors."""


def embed(texts: list[str], input_type: str) -> list[list[float]]:
    """Vectors of length 1, one per text; ``input_type`` is query or passage. Raises EngineError."""
    path = "/v1/embeddings" if MODEL else "/embed"
    body = {"model": MODEL, "input": texts, "input_type": input_type} if MODEL else {"inputs": texts}
    request = urllib.request.Request(
        f"{ENGINE}{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEY}"} if KEY else {}),
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            told = json.load(answer)
            vectors: list[list[float]] = [row["embedding"] for row in told["data"]] if MODEL else told
            return vectors
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{ENGINE}{path}: {error}") from error


class Corpus:
    """The passages and their vectors, which are asked for once."""

    def __init__(self) -> None:
        self._vectors: list[list[float]] = []
        self._lock = threading.Lock()

    def vectors(self) -> list[list[float]]:
        """Raises EngineError."""
        with self._lock:
            if not self._vectors:
                self._vectors = embed(list(CORPUS), "passage")
            return self._vectors

    def nearest(self, question: str, top: int) -> list[dict[str, object]]:
        """Passages by falling score. Raises EngineError."""
        passages = self.vectors()
        [asked] = embed([question], "query")
        scores = [sum(a * b for a, b in zip(asked, vector, strict=True)) for vector in passages]
        best = sorted(range(len(CORPUS)), key=lambda at: -scores[at])[:top]
        return [{"text": CORPUS[at], "score": round(scores[at], 4)} for at in best]


class Handler(BaseHTTPRequestHandler):
    """Answers in JSON."""

    corpus = Corpus()

    def do_GET(self) -> None:
        """Readiness."""
        if self.path != "/ready":
            self._answer(404, {"error": "not found: POST /query, GET /ready"})
            return
        try:
            self.corpus.vectors()
        except EngineError as error:
            self._answer(503, {"error": str(error)})
        else:
            self._answer(200, {"ready": True})

    def do_POST(self) -> None:
        """The query."""
        if self.path != "/query":
            self._answer(404, {"error": "not found: POST /query, GET /ready"})
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            self._answer(413, {"error": f"a body of {MOST_BYTES} bytes at most, with its Content-Length"})
            return
        try:
            body = json.loads(self.rfile.read(int(length)))
            question, top = body["question"], body.get("top", 3)
        except (ValueError, KeyError, TypeError, AttributeError):
            self._answer(400, {"error": 'expected {"question": "...", "top": 3}'})
            return
        if not isinstance(question, str) or not isinstance(top, int) or not 1 <= top <= MOST_PASSAGES:
            self._answer(400, {"error": f"question is a text, top a number from 1 to {MOST_PASSAGES}"})
            return
        try:
            self._answer(200, {"passages": self.corpus.nearest(question, top)})
        except EngineError as error:
            self._answer(502, {"error": str(error)})

    def _answer(self, status: int, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Finishes running requests before it ends."""

    daemon_threads = False
    block_on_close = True


def main() -> int:
    if not ENGINE.startswith(("http://", "https://")):
        print("error: EMBED_URL is no URL: give it as `make plan` and the contract say", file=sys.stderr)
        return 2
    server = Server(("", PORT), Handler)
    # shutdown() waits for the loop that this signal interrupts, so it has a thread of its own.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"listening on {PORT}, engine at {ENGINE}", flush=True)
    server.serve_forever()
    server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
