"""More texts at a time than a pod takes: it has to refuse in the documented form, and to go on serving.

TEI 1.9 refuses a single text and a list alike (recordings, overload); up to 1.8 lists waited without end. One pod gets
the burst, which is as small as it can be: its places once, and a little more.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import requests

from infra.core.catalogue import ModelKind
from infra.core.contract import WorkloadContract
from infra.core.errors import counted
from scripts.smoke.cluster import PodState
from scripts.smoke.results import NotProvenError, UnmetError
from scripts.smoke.tei_grpc import TeiGrpcClient

#: Words per text, and seconds between the texts that take all places and those that are too many, from one try to the
#: next: a fast engine has answered short texts before others come, on a slow way they come in another order.
_TRIES = ((32, 0.05), (128, 0.05), (480, 0.05), (480, 0.5))
_WORD = "water "
#: Part of the payload limit that a body may take.
_PAYLOAD_SHARE = 0.5
#: A pod that refuses five requests within half a minute may be given another by KEDA.
_EXTRA_SINGLES = 1
_EXTRA_CALLS = 2
#: More connections than this are a load test.
_MOST_CONNECTIONS = 256
_MOST_CALLS = 2048
_CALLS_PER_CONNECTION = 100
_EXTRA_SECONDS = 10

_REFUSAL = {"error": "Model is overloaded", "error_type": "Overloaded"}
_LIST, _SINGLE = "a list", "a single text"

States = Callable[[], Mapping[str, PodState]]


@dataclass(frozen=True)
class _Answer:
    form: str
    status: int
    body: bytes


def skipped(reason: str) -> str:
    """In place of the burst. Always raises NotProvenError."""
    raise NotProvenError(f"not sent: {reason}")


class Burst:
    """``states`` tells the pods of the workload before and after. The key is sent and shown nowhere."""

    def __init__(self, workload: WorkloadContract, url: str, api_key: str | None, states: States) -> None:
        self._workload = workload
        self._url = url.rstrip("/")
        self._key = api_key
        self._states = states
        self._kind = ModelKind(workload.model.kind)
        self._places: int = workload.limits["max_concurrent_requests"]
        self._timeout = workload.budgets["longest_request"] + _EXTRA_SECONDS
        self._logs = f"kubectl -n {workload.namespace} logs deployment/{workload.deployment}"

    def prove(self) -> str:
        """Raises UnmetError, and NotProvenError where no text too many was found waiting."""
        before = self._states()
        found = self._over_grpc() if self._workload.protocol == "grpc" else self._over_http()
        after = self._states()
        for pod, state in before.items():
            now = after.get(pod)
            if now is None or now.restarts > state.restarts or (state.ready and not now.ready):
                happened = (
                    "is gone" if now is None else "restarted" if now.restarts > state.restarts else "is not ready"
                )
                raise UnmetError(
                    f"{found}, but pod {pod} {happened} after it",
                    f"{self._logs} --previous; a pod that does not stand its own limits needs more memory, or lower "
                    "maxConcurrentRequests and maxBatchTokens",
                )
        return f"{found}; {counted(len(after), 'pod')} as before"

    # -- HTTP

    def _over_http(self) -> str:
        list_size = self._workload.limits["max_client_batch_size"]
        if self._places / list_size > _MOST_CONNECTIONS:
            raise NotProvenError(f"{self._places} places take more than {_MOST_CONNECTIONS} connections to fill")
        refused: dict[str, int] = {_LIST: 0, _SINGLE: 0}
        answered = 0
        for words, pause in _TRIES:
            for answer in self._burst(list_size, self._fitting(words, list_size), pause):
                self._judge(answer)
                if answer.status == 200:
                    answered += 1
                else:
                    refused[answer.form] += 1
            if all(refused.values()):
                too_many = f"{counted(refused[_LIST], 'list')} and {counted(refused[_SINGLE], 'single text')}"
                return (
                    f"{self._places} places: {too_many} too many got 429 Overloaded, {counted(answered, 'request')} an "
                    "answer"
                )
        if refused[_SINGLE] and not refused[_LIST]:
            raise UnmetError(
                f"single texts were refused with 429, lists of {list_size} never: they wait without end",
                "that is how TEI up to 1.8 works: deploy 1.9 or newer, or give clients a deadline",
            )
        never = " and ".join(form for form, number in refused.items() if not number)
        raise NotProvenError(
            f"{never} never met {self._places} taken places: the pod answers {counted(answered, 'request')} of the "
            "burst as fast as they come"
        )

    def _burst(self, list_size: int, text: str, pause: float) -> Iterator[_Answer]:
        full, rest = divmod(self._places, list_size)
        filling = [list_size] * full + [rest] * bool(rest)
        # 0 stands for a single text, which is asked for in another form.
        too_many = [list_size] + [0] * _EXTRA_SINGLES
        with ThreadPoolExecutor(max_workers=len(filling) + len(too_many)) as threads:
            sent = [threads.submit(self._post, size, text) for size in filling]
            time.sleep(pause)
            sent += [threads.submit(self._post, size, text) for size in too_many]
            for future in sent:
                yield future.result()

    def _post(self, size: int, text: str) -> _Answer:
        path, body = self._request(size, text)
        form = _LIST if size else _SINGLE
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        with requests.Session() as session:
            session.trust_env = False
            try:
                answer = session.post(self._url + path, json=body, headers=headers, timeout=self._timeout)
            except requests.RequestException as error:
                raise UnmetError(
                    f"POST {path} with {form} among {self._places} others: {type(error).__name__}, no answer",
                    f"an overloaded pod has to refuse, not to hang up: {self._logs}; on a real network, try again",
                ) from None
        return _Answer(form, answer.status_code, answer.content)

    def _request(self, size: int, text: str) -> tuple[str, dict[str, Any]]:
        """Path and body with ``size`` texts; 0: one text, as a single input where there is such a form."""
        match self._kind:
            case ModelKind.RERANKER:
                return "/rerank", {"query": "water", "texts": [text] * (size or 1)}
            case ModelKind.CLASSIFIER:
                return "/predict", {"inputs": [[text]] * size or text}
            case ModelKind.SPARSE:
                return "/embed_sparse", {"inputs": [text] * size or text}
            case ModelKind.EMBEDDING:
                return "/embed", {"inputs": [text] * size or text}

    def _fitting(self, words: int, list_size: int) -> str:
        """A text of so many words, or of as many as model and payload limit take."""
        limits = self._workload.limits
        payload = int(_PAYLOAD_SHARE * limits["payload_bytes"] / (list_size * len(_WORD)))
        count: int = max(1, min(words, limits["max_input_tokens"] // 2, payload))
        return (_WORD * count).strip()

    def _judge(self, answer: _Answer) -> None:
        if answer.status == 200:
            return
        shown = (
            f"{answer.form} among {self._places} others: {answer.status} {answer.body[:200].decode(errors='replace')!r}"
        )
        if answer.status != 429:
            raise UnmetError(f"{shown}, expected 200 or 429", f"read {self._logs}")
        try:
            said: object = json.loads(answer.body)
        except ValueError:
            said = None
        if said != _REFUSAL:
            raise UnmetError(
                f"{shown}, expected {json.dumps(_REFUSAL)}",
                "does something between here and the pod answer, such as a gateway? Clients that wait and repeat look "
                "for error_type Overloaded",
            )

    # -- gRPC

    def _over_grpc(self) -> str:
        paths = {
            ModelKind.EMBEDDING: "/tei.v1.Embed/Embed",
            ModelKind.SPARSE: "/tei.v1.Embed/EmbedSparse",
            ModelKind.CLASSIFIER: "/tei.v1.Predict/Predict",
        }
        path = paths.get(self._kind)
        if path is None:
            raise NotProvenError("over gRPC a rerank waits for places and is never refused: give clients a deadline")
        if self._places > _MOST_CALLS:
            raise NotProvenError(f"{self._places} places take more than {_MOST_CALLS} calls to fill")
        answered = 0
        for words, _ in _TRIES:
            codes = self._calls(path, self._fitting(words, 1))
            wrong = [code for code in codes if code not in {("OK", ""), ("RESOURCE_EXHAUSTED", _REFUSAL["error"])}]
            if wrong:
                code, details = wrong[0]
                raise UnmetError(
                    f"{path} among {self._places} others: {code} {details!r}, expected OK or RESOURCE_EXHAUSTED "
                    f"{_REFUSAL['error']!r}",
                    f"read {self._logs}",
                )
            refused = sum(code == "RESOURCE_EXHAUSTED" for code, _ in codes)
            answered += len(codes) - refused
            if refused:
                return (
                    f"{self._places} places: {counted(refused, 'call')} too many got RESOURCE_EXHAUSTED, "
                    f"{counted(answered, 'call')} an answer"
                )
        raise NotProvenError(
            f"no call met {self._places} taken places: the pod answers {counted(answered, 'call')} as fast as they come"
        )

    def _calls(self, path: str, text: str) -> list[tuple[str, str]]:
        number = self._places + _EXTRA_CALLS
        target = self._url.removeprefix("http://")
        clients = [TeiGrpcClient(target, self._key, self._timeout) for _ in range(0, number, _CALLS_PER_CONNECTION)]
        try:
            pending = [clients[at // _CALLS_PER_CONNECTION].begin(path, text) for at in range(number)]
            return [code() for code in pending]
        finally:
            for client in clients:
                client.close()
