"""What is loaded: a server on loopback, and the requests it gets."""

import ipaddress
import math
import random
import urllib.parse
from dataclasses import dataclass, field

from infra.core.capacity import TokenLengths
from infra.core.catalogue import ModelKind
from scripts.command import CommandError

#: Texts of one length.
SHORT = TokenLengths(p50=128, p95=128, max=128)

_MOST_TEXTS = 10_000
_KINDS = (ModelKind.EMBEDDING, ModelKind.SPARSE, ModelKind.RERANKER)


@dataclass(frozen=True)
class Target:
    """A server that speaks TEI's HTTP API, and what each request asks of it. Raises CommandError for what cannot be.

    ``model`` only labels the result. ``tokens`` are the lengths of what the model reads: text and special tokens,
    rerankers: query and text together, as in the capacity planner; tokens of BERT's English vocabulary. The same
    ``seed`` gives the same texts. ``dimension`` is checked in every answer where it is known. ``timeout_seconds``
    counts from the moment a request is sent. A connection is closed after ``requests_per_connection`` requests:
    kube-proxy chooses a pod per connection, so with 1 every request is balanced, and no request meets a connection that
    the server is about to close.
    """

    url: str
    kind: ModelKind
    model: str
    texts: int = 1
    tokens: TokenLengths = SHORT
    api_key: str | None = field(default=None, repr=False)
    seed: int = 0
    dimension: int | None = None
    timeout_seconds: float = 60
    requests_per_connection: int = 1

    def __post_init__(self) -> None:
        _loopback(self.url)
        if self.kind not in _KINDS:
            raise CommandError(f"kind: got {self.kind}; allowed: {', '.join(_KINDS)}")
        if not 1 <= self.texts <= _MOST_TEXTS:
            raise CommandError(f"texts: got {self.texts}; allowed: 1 to {_MOST_TEXTS:,}")
        if not (math.isfinite(self.timeout_seconds) and self.timeout_seconds > 0):
            raise CommandError(f"timeout: got {self.timeout_seconds:g}; allowed: more than 0 seconds")
        if self.requests_per_connection < 1:
            raise CommandError(f"requests per connection: got {self.requests_per_connection}; allowed: 1 or more")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise CommandError("the API key has characters that no HTTP header carries: set it again, without line end")

    def shown(self, text: str) -> str:
        """``text`` of the server for a report: one line, no key in it, cut."""
        if self.api_key:
            text = text.replace(self.api_key, "***")
        return " ".join(text.split())[:200]

    def lengths(self, count: int) -> list[int]:
        """``count`` lengths in tokens, in the shares of the capacity planner's sample, shuffled by the seed."""
        ends: list[tuple[float, float]] = []
        total = 0.0
        for share, tokens in self.tokens.sample(self.tokens.longest):
            total += share
            ends.append((total, tokens))
        lengths = []
        at = 0
        for number in range(count):
            while at < len(ends) - 1 and ends[at][0] < (number + 0.5) / count:
                at += 1
            lengths.append(round(ends[at][1]))
        random.Random(self.seed).shuffle(lengths)  # noqa: S311 - not for secrets
        return lengths


def _loopback(url: str) -> None:
    """Load goes to this machine only: a mistyped address must not reach somebody else's server."""
    allowed = "http://127.0.0.1:PORT; load leaves this machine only through kubectl port-forward"
    # urlsplit checks the port when it is asked for.
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise CommandError(f"the URL cannot be read; allowed: {allowed}") from None
    if parts.username is not None or parts.password is not None:
        raise CommandError(f"the URL holds a user name or password; allowed: {allowed}")
    if parts.scheme != "http" or parts.query or parts.fragment or host is None:
        raise CommandError(f"URL {url!r}; allowed: {allowed}")
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        raise CommandError(f"URL {url!r} is not on loopback; allowed: {allowed}")
