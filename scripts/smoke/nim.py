"""Checks of an NVIDIA NIM for text embedding or reranking, against any base URL.

Paths, codes and texts are those of NVIDIA's pages and of public reports; nobody recorded a real NIM for this project.
"""

import re
from collections.abc import Mapping
from typing import Any

from infra.core.catalogue import ModelKind
from scripts.smoke import answers
from scripts.smoke.http_service import HttpService, shown
from scripts.smoke.results import Check, NotProvenError, UnmetError

_EMBEDDINGS, _RANKING = "/v1/embeddings", "/v1/ranking"
_QUERY, _PASSAGE = "query", "passage"
_ASYMMETRIC = "'input_type' parameter is required for asymmetric models"
_SAMPLE = re.compile(r"^([A-Za-z_:][^\s#]*(?:\{.*\})?) (\S+)", re.MULTILINE)


class NimService(HttpService):
    """A NIM workload of the contract."""

    overloaded = 503

    def checks(self) -> list[Check]:
        """Every check that applies to the workload."""
        kinds = {
            ModelKind.EMBEDDING: [
                Check("query and passage", self.query_and_passage),
                Check("input_type", self.input_type),
                Check("similar texts", self.similarity),
                Check("openai client", self.openai_client),
            ],
            ModelKind.RERANKER: [Check("order of texts", self.order)],
        }
        return [
            Check("health", self.health),
            Check("model name", self.model_name),
            *kinds[ModelKind(self.workload.model.kind)],
            Check("metrics", self.metrics),
        ]

    def health(self) -> str:
        """Ready, as the readiness probe asks, and live, as the liveness probe does."""
        for path in ("/v1/health/ready", "/v1/health/live"):
            answer = self._get(path, key=None)
            if answer.status_code != 200:
                raise UnmetError(
                    f"GET {path}: {shown(answer)}",
                    f"the first start downloads weights and may build engines for 20 minutes; read {self._logs}",
                )
        return "ready and live"

    def model_name(self) -> str:
        """The name that clients have to send."""
        told = self._json(self._get("/v1/models", key=None), "/v1/models")
        rows = told.get("data") if isinstance(told, Mapping) else None
        served = [row.get("id") for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
        if self.workload.model.client_name not in served:
            raise UnmetError(
                f"the served models are {served}, the contract says {self.workload.model.client_name!r}",
                "run pulumi up, so that the pods get image and servedModelName of the stack file",
            )
        return f"{self.workload.model.client_name} is served"

    def query_and_passage(self) -> str:
        """A text has one vector as a query and another as a passage, both of the right length."""
        (query,) = self._embed([answers.QUESTION], _QUERY)
        (passage,) = self._embed([answers.QUESTION], _PASSAGE)
        found = answers.dimension_and_norm(query, self.workload)
        answers.dimension_and_norm(passage, self.workload)
        if query == passage:
            raise UnmetError(
                "a text has the same vector as a query and as a passage",
                f"input_type does nothing: is {self.workload.model.id} served, or another model? {self._logs}",
            )
        return f"{found}, another vector for a passage"

    def input_type(self) -> str:
        """Clients that were written for OpenAI's API forget it, and have to be told."""
        body = {"model": self.workload.model.client_name, "input": [answers.QUESTION]}
        answer = self._post(_EMBEDDINGS, body)
        if answer.status_code != 400 or _ASYMMETRIC not in answer.text:
            raise UnmetError(
                f"POST {_EMBEDDINGS} without input_type: {shown(answer)}, expected 400 with {_ASYMMETRIC!r}",
                "another model or a gateway in between: vectors of queries may be those of passages, unseen",
            )
        return "400 without input_type, as clients have to expect"

    def similarity(self) -> str:
        """That vectors mean something: weights that were not loaded give vectors too."""
        (question,) = self._embed([answers.QUESTION], _QUERY)
        similar, unrelated = self._embed([answers.SIMILAR, answers.UNRELATED], _PASSAGE)
        return answers.meaning(question, similar, unrelated)

    def openai_client(self) -> str:
        """The two ways of an application that was written for OpenAI's API: a further field, or the model's name."""
        # Half of the time that all imports take, and Ctrl-C has to wait for it: no other command needs it.
        import openai  # noqa: PLC0415

        model = self.workload.model.client_name
        client = openai.OpenAI(
            base_url=f"{self._url}/v1",
            # The client wants a key; a NIM does not.
            api_key="none",
            timeout=self._timeout,
            max_retries=3,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )
        try:
            by_field = client.embeddings.create(
                model=model, input=answers.QUESTION, extra_body={"input_type": _QUERY}
            ).data
            by_name = client.embeddings.create(model=f"{model}-{_QUERY}", input=answers.QUESTION).data
        except openai.APIStatusError as error:
            raise UnmetError(
                f"embeddings.create(model={model!r}): {error.status_code} {error.response.text}", f"read {self._logs}"
            ) from None
        except openai.APIError as error:
            raise UnmetError(f"embeddings.create(model={model!r}): {error}", f"read {self._logs}") from None
        finally:
            client.close()
        lengths = {len(item.embedding) for item in (*by_field, *by_name)}
        if self.workload.model.dimension and lengths != {self.workload.model.dimension}:
            raise UnmetError(f"vectors of {sorted(lengths)} dimensions", f"read {self._logs}")
        return f"embeddings.create works with extra_body input_type and with model {model}-{_QUERY}"

    def order(self) -> str:
        """The one text that answers the query comes first."""
        told = self._json(self._post(_RANKING, self._ranking()), _RANKING)
        rankings = told.get("rankings") if isinstance(told, Mapping) else None
        rows = [row for row in rankings if isinstance(row, Mapping)] if isinstance(rankings, list) else []
        ranks = [(row.get("index", -1), row.get("logit", 0.0)) for row in rows]
        return answers.order(ranks, f"POST {_RANKING}", self.workload, self._logs)

    def metrics(self) -> str:
        """That there are metrics, and that a request changes them: no page says what a NIM calls its own."""
        if self.workload.metrics_port != "http":
            raise NotProvenError(
                f"metrics are on port {self.workload.metrics_port}, which the Service does not publish"
            )
        before = self._samples()
        if ModelKind(self.workload.model.kind) is ModelKind.RERANKER:
            self._json(self._post(_RANKING, self._ranking()), _RANKING)
        else:
            self._embed([answers.QUESTION], _QUERY)
        after = self._samples()
        if not after or after == before:
            raise UnmetError(
                f"{len(after)} samples on {self.workload.metrics_path}, and a request changed none",
                f"is that the engine's path? No dashboard or alert sees this workload; read {self._logs}",
            )
        return f"{len(after)} samples on {self.workload.metrics_path}, and a request changes some"

    def overload(self) -> str:
        """No burst is sent. Always raises NotProvenError."""
        raise NotProvenError(
            "no burst is sent to a NIM: no page says what takes a place of its queue, or how the refusal reads"
        )

    def _samples(self) -> dict[str, str]:
        answer = self._get(self.workload.metrics_path, key=None)
        if answer.status_code != 200:
            raise UnmetError(
                f"GET {self.workload.metrics_path}: {shown(answer)}", "Prometheus gets the same answer; read the log"
            )
        return dict(_SAMPLE.findall(answer.text))

    def _ranking(self) -> dict[str, Any]:
        return {
            "model": self.workload.model.client_name,
            "query": {"text": answers.QUERY},
            "passages": [{"text": text} for text in answers.TEXTS],
        }

    def _embed(self, texts: list[str], input_type: str) -> list[list[float]]:
        body = {"model": self.workload.model.client_name, "input": texts, "input_type": input_type}
        told = self._json(self._post(_EMBEDDINGS, body), _EMBEDDINGS)
        rows = told.get("data") if isinstance(told, Mapping) else None
        found = [row.get("embedding") for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
        vectors = [vector for vector in found if isinstance(vector, list)]
        if len(vectors) != len(texts):
            raise UnmetError(f"POST {_EMBEDDINGS}: not one vector per text", f"read {self._logs}")
        return vectors
