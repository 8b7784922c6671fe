"""What checks of engines that speak HTTP share: calls that never show a key and say what to do when they fail."""

import re
import time
from collections.abc import Mapping
from typing import Any

import requests

from infra.core.contract import WorkloadContract
from scripts.smoke import answers
from scripts.smoke.results import UnmetError, UnreachableError

#: Beyond what the engine may take: port-forward and network.
_EXTRA_SECONDS = 10


class HttpService:
    """A workload of the contract at ``base_url``. ``api_key`` is sent with every call and shown nowhere."""

    #: Status with which the engine says that its queue is full.
    overloaded: int

    def __init__(self, workload: WorkloadContract, base_url: str, api_key: str | None = None) -> None:
        self.workload = workload
        self._url = base_url.rstrip("/")
        self._key = api_key
        self._timeout = workload.budgets["longest_request"] + _EXTRA_SECONDS
        self._session = requests.Session()
        # The way to the Service is loopback: a proxy of the environment would be asked for its own loopback.
        self._session.trust_env = False
        self._logs = f"kubectl -n {workload.namespace} logs deployment/{workload.deployment}"

    def _get(self, path: str, *, key: str | None) -> requests.Response:
        return self._call("GET", path, key, None)

    def _post(self, path: str, body: Mapping[str, Any]) -> requests.Response:
        """Retries while the engine is overloaded: other clients may be at work, and that is an answer as planned."""
        give_up = time.monotonic() + self._timeout
        pause = 0.5
        while True:
            answer = self._call("POST", path, self._key, body)
            if answer.status_code != self.overloaded or time.monotonic() + pause > give_up:
                return answer
            time.sleep(pause)
            pause *= 2

    def _call(self, method: str, path: str, key: str | None, body: Mapping[str, Any] | None) -> requests.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            answer = self._session.request(method, self._url + path, headers=headers, json=body, timeout=self._timeout)
        except requests.Timeout:
            raise UnreachableError(
                f"{method} {path}: no answer within {self._timeout} s",
                f"the engine hangs or its queue is longer than longestRequestSeconds allows; read {self._logs}",
            ) from None
        except requests.RequestException as error:
            raise UnreachableError(
                f"{method} {path}: {_reason(error)}",
                f"did the pod end while it was tested? kubectl -n {self.workload.namespace} get pods, {self._logs}",
            ) from None
        if self._key and len(self._key) >= answers.LEAST_KEY and self._key.encode() in answer.content:
            raise UnmetError(f"{method} {path}: the answer holds the API key", "clients log answers: set another key")
        return answer

    def _json(self, answer: requests.Response, path: str) -> Any:
        if answer.status_code != 200:
            raise UnmetError(f"{path}: {shown(answer)}", f"read {self._logs}")
        try:
            return answer.json()
        except requests.JSONDecodeError:
            raise UnmetError(f"{path}: the answer is no JSON", f"does another program answer? {self._logs}") from None


def shown(answer: requests.Response) -> str:
    """Status and text of an answer, for errors."""
    return f"{answer.status_code} {answer.text[:200]!r}" if answer.text else f"{answer.status_code} without a text"


def _reason(error: Exception) -> str:
    """The innermost cause: requests and urllib3 wrap it several times."""
    text = str(error)
    match = re.search(r"(Connection refused|Connection reset by peer|Remote end closed connection)", text)
    return match[1].lower() if match else type(error).__name__
