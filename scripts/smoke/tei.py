"""Checks of a Text Embeddings Inference workload over HTTP, against any base URL.

Paths, codes and texts are those of a real TEI 1.9.3 (recordings of its answers: tests/data/tei-1.9.3).
"""

from collections.abc import Mapping
from typing import Any

from infra.core.catalogue import ModelKind
from scripts.smoke import answers
from scripts.smoke.http_service import HttpService, shown
from scripts.smoke.results import Check, NotProvenError, UnmetError


class TeiService(HttpService):
    """A TEI workload of the contract."""

    overloaded = 429

    def checks(self) -> list[Check]:
        """Every check that applies to the workload."""
        kinds = {
            ModelKind.EMBEDDING: [
                Check("dimension and norm", self.vector),
                Check("similar texts", self.similarity),
            ],
            ModelKind.SPARSE: [Check("sparse vector", self.sparse)],
            ModelKind.RERANKER: [Check("order of texts", self.order)],
            ModelKind.CLASSIFIER: [Check("classes", self.classes)],
        }
        checks = [Check("health", self.health), Check("info", self.info), *kinds[ModelKind(self.workload.model.kind)]]
        if self.workload.openai_api:
            checks.append(Check("openai client", self.openai_client))
        checks += [Check("batch limit", self.batch_limit), Check("metrics", self.metrics)]
        if self.workload.api_key_secret:
            checks.append(Check("API key", self.key_enforced))
        return checks

    def health(self) -> str:
        """/health is public and waits behind the running batch."""
        answer = self._get("/health", key=None)
        if answer.status_code != 200:
            raise UnmetError(
                f"GET /health: {shown(answer)}",
                f"the engine says that it cannot compute; read {self._logs} and restart the pod if the GPU is lost",
            )
        return "GET /health: 200, the engine computes"

    def info(self) -> str:
        """/info reports the configuration that the process runs with."""
        answer = self._get("/info", key=self._key)
        limits = self.workload.limits
        expected = {
            "model_id": self.workload.model.id,
            "served_model_name": self.workload.model.client_name,
            "version": self.workload.version,
            "max_input_length": limits["max_input_tokens"],
            "max_batch_tokens": limits["max_batch_tokens"],
            "max_client_batch_size": limits["max_client_batch_size"],
            "max_concurrent_requests": limits["max_concurrent_requests"],
            "auto_truncate": limits["auto_truncate"],
        }
        told = self._json(answer, "/info")
        if not isinstance(told, Mapping):
            raise UnmetError(
                f"GET /info: {shown(answer)}", f"is the Service {self.workload.service} a TEI? {self._logs}"
            )
        answers.as_planned(told, expected)
        return f"{self.workload.model.id}, TEI {self.workload.version}, and all limits as planned"

    def vector(self) -> str:
        """Length of the vector, and that it is normalised."""
        (vector,) = self._embed([answers.QUESTION])
        return answers.dimension_and_norm(vector, self.workload)

    def similarity(self) -> str:
        """That vectors mean something: weights that were not loaded give vectors too."""
        return answers.meaning(*self._embed([answers.QUESTION, answers.SIMILAR, answers.UNRELATED]))

    def sparse(self) -> str:
        """A SPLADE model gives weights of vocabulary entries."""
        answer = self._json(self._post("/embed_sparse", {"inputs": answers.QUESTION}), "/embed_sparse")
        entries = answer[0] if isinstance(answer, list) and answer and isinstance(answer[0], list) else []
        if not entries or not all(isinstance(entry, Mapping) and entry.get("value", 0) > 0 for entry in entries):
            raise UnmetError("POST /embed_sparse: no weights above zero", f"is the pooling splade? {self._logs}")
        return f"{len(entries)} vocabulary entries with a weight"

    def order(self) -> str:
        """The one text that answers the query comes first."""
        body = {"query": answers.QUERY, "texts": list(answers.TEXTS)}
        answer = self._json(self._post("/rerank", body), "/rerank")
        ranks = [rank for rank in answer if isinstance(rank, Mapping)] if isinstance(answer, list) else []
        indices_and_scores = [(rank.get("index", -1), rank.get("score", 0.0)) for rank in ranks]
        return answers.order(indices_and_scores, "POST /rerank", self.workload, self._logs)

    def classes(self) -> str:
        """A classifier gives a score per class."""
        answer = self._json(self._post("/predict", {"inputs": [[answers.QUESTION]]}), "/predict")
        scores = answer[0] if isinstance(answer, list) and answer and isinstance(answer[0], list) else []
        if not scores or not all(isinstance(score, Mapping) and 0 <= score.get("score", -1) <= 1 for score in scores):
            raise UnmetError("POST /predict: no scores from 0 to 1", f"is the model a classifier? {self._logs}")
        return ", ".join(f"{score.get('label')} {score['score']:.3f}" for score in scores[:3])

    def openai_client(self) -> str:
        """What an application does that was written for OpenAI's API."""
        # Half of the time that all imports take, and Ctrl-C has to wait for it: no other command needs it.
        import openai  # noqa: PLC0415

        client = openai.OpenAI(
            base_url=f"{self._url}/v1",
            # The client wants a key; a server without one ignores it.
            api_key=self._key or "none",
            timeout=self._timeout,
            max_retries=3,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )
        model = self.workload.model.client_name
        try:
            answer = client.embeddings.create(model=model, input=[answers.QUESTION, answers.SIMILAR])
        except openai.APIStatusError as error:
            raise UnmetError(
                f"embeddings.create(model={model!r}): {error.status_code} {error.response.text}",
                f"read {self._logs}",
            ) from None
        except openai.APIError as error:
            raise UnmetError(f"embeddings.create(model={model!r}): {error}", f"read {self._logs}") from None
        finally:
            client.close()
        if answer.model != model:
            raise UnmetError(
                f"the served model is called {answer.model!r}, the contract says {model!r}",
                "run pulumi up, so that the pods get servedModelName of the stack file",
            )
        lengths = {len(item.embedding) for item in answer.data}
        if len(answer.data) != 2 or (self.workload.model.dimension and lengths != {self.workload.model.dimension}):
            raise UnmetError(
                f"{len(answer.data)} vectors of {sorted(lengths)} dimensions for 2 texts", f"read {self._logs}"
            )
        return f"embeddings.create gave 2 vectors of model {answer.model}"

    def batch_limit(self) -> str:
        """As many texts as one request may hold, then one more."""
        most = self.workload.limits["max_client_batch_size"]
        asked = self.workload.top_k or most
        path = self._batch_path()
        for size in sorted({asked, most}):
            self._answered_all(path, size)
        refused = self._post(path, self._batch(most + 1))
        text = f"batch size {most + 1} > maximum allowed batch size {most}"
        if refused.status_code != 422 or text not in refused.text:
            raise UnmetError(
                f"POST {path} with {most + 1} texts: {shown(refused)}, expected 422 with {text!r}",
                "the engine has another client limit than the plan: run pulumi up, and look for env in the stack file "
                "that overrides the plan",
            )
        answered = f"{most} texts" if asked == most else f"{asked} (topK) and {most} texts"
        return f"{answered} answered, {most + 1} refused with 422"

    def _answered_all(self, path: str, size: int) -> None:
        answer = self._post(path, self._batch(size))
        if answer.status_code != 200:
            raise UnmetError(
                f"POST {path} with {size} texts: {shown(answer)}",
                f"clients may send {size} texts by the contract; a 413 asks for a higher payloadLimit, a 429 for a "
                "higher maxConcurrentRequests or more replicas",
            )
        given = self._json(answer, path)
        if not isinstance(given, list) or len(given) != size:
            raise UnmetError(f"POST {path} with {size} texts: not one answer per text", f"read {self._logs}")

    def metrics(self) -> str:
        """Counters that scaling and alerts read: absent until the first request, so after traffic."""
        if self.workload.forward_metrics_port != self.workload.forward_port:
            raise NotProvenError(
                f"metrics are on port {self.workload.metrics_port}, which the Service does not publish"
            )
        before = self._requests_counted()
        self._requests_made()
        after = self._requests_counted()
        if not after > before:
            raise UnmetError(
                f"te_request_count stayed at {after:.0f} while a request was answered",
                f"is {self.workload.metrics_path} that of the engine? No dashboard, alert or scaler sees this workload",
            )
        return f"te_request_count went from {before:.0f} to {after:.0f} with one request"

    def key_enforced(self) -> str:
        """Clients without the key, or with another one, get nothing."""
        if not self._key:
            raise UnmetError(
                f"Secret {self.workload.api_key_secret} has no key {self.workload.api_key_secret_key}",
                "set it with pulumi config set --secret embedding-serving:apiKey, then pulumi up",
            )
        path = self._batch_path()
        for what, key in (("no key", None), ("another key", "not-the-key")):
            for method, where, body in (("GET", "/info", None), ("POST", path, self._batch(1))):
                code = self._call(method, where, key, body).status_code
                if code != 401:
                    raise UnmetError(
                        f"{method} {where} with {what}: {code}, expected 401",
                        "anyone who reaches the Service can use it: check API_KEY of the pods, then pulumi up",
                    )
        code = self._get("/info", key=self._key).status_code
        if code != 200:
            raise UnmetError(
                f"GET /info with the key of Secret {self.workload.api_key_secret}: {code}, expected 200",
                "the pods have another key than the Secret, or it ends with a line break: set it again, pulumi up",
            )
        return "401 without the key and with another one, 200 with it"

    def _requests_counted(self) -> float:
        answer = self._get(self.workload.metrics_path, key=None)
        if answer.status_code != 200:
            raise UnmetError(
                f"GET {self.workload.metrics_path}: {shown(answer)}", "Prometheus gets the same answer; read the log"
            )
        return answers.requests_counted(answer.text)

    def _requests_made(self) -> None:
        path = self._batch_path()
        answer = self._post(path, self._batch(1))
        if answer.status_code != 200:
            raise UnmetError(f"POST {path}: {shown(answer)}", f"read {self._logs}")

    def _batch_path(self) -> str:
        return {
            ModelKind.EMBEDDING: "/embed",
            ModelKind.SPARSE: "/embed_sparse",
            ModelKind.RERANKER: "/rerank",
            ModelKind.CLASSIFIER: "/predict",
        }[ModelKind(self.workload.model.kind)]

    def _batch(self, size: int) -> dict[str, Any]:
        texts = [f"text {number}" for number in range(size)]
        match ModelKind(self.workload.model.kind):
            case ModelKind.RERANKER:
                return {"query": answers.QUERY, "texts": texts}
            case ModelKind.CLASSIFIER:
                return {"inputs": [[text] for text in texts]}
            case _:
                return {"inputs": texts}

    def _embed(self, texts: list[str]) -> list[list[float]]:
        answer = self._json(self._post("/embed", {"inputs": texts}), "/embed")
        if not isinstance(answer, list) or len(answer) != len(texts) or not all(isinstance(v, list) for v in answer):
            raise UnmetError("POST /embed: not one vector per text", f"read {self._logs}")
        return answer
