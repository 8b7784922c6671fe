"""PromQL of the two scaling signals of a TEI workload, as KEDA's Prometheus scaler asks them.

Both answer with one number without labels, or with nothing when no pod can be read: with ``ignoreNullValues: "false"``
KEDA then reports an error and uses its fallback, instead of taking 0 for an idle workload. `or vector(0)` would not do.

Names and labels: recording metrics/names.json of TEI 1.9.3 (tests/data/tei-1.9.3/metrics.json). A series of TEI exists
from the first time it is touched, so pods that have served nothing have none; they count as 0 as soon as `up` is 1.
`namespace`, `service` and `pod` are what prometheus-operator gives every target of a ServiceMonitor, `up` included.
tests/promql has the cases.
"""

import json

#: Scrapes that a window has to hold: rate() still has two of them when two fail.
_SCRAPES = 4
#: Two looks of the HPA (15 s, its default and fixed on EKS), so that no scrape falls between two looks.
_LEAST_WINDOW_SECONDS = 30
#: A pod whose scrape fails is taken as lost for this long after it last answered. Scaling down waits as long again
#: (infra.core.capacity.scaling), so a pod has to be unreadable for twice this before its share is given back.
_LOST_SECONDS = 300


def queue_depth(namespace: str, service: str, scrape_interval_seconds: int) -> str:
    """Texts that wait in the queues of the pods behind ``service``: te_queue_size, averaged over a window, summed.

    The window is the average's, not the maximum's: the threshold is throughput x waiting time, and by Little's law
    that is the mean length of the queue. The mean still sees a queue that most scrapes missed because they fell just
    after a batch was taken, at its share of the time, and a single full sample cannot double the replicas by itself.
    It holds 4 scrapes and at least 30 s. ``scrape_interval_seconds`` is 1 to 60.

    Pods that cannot be read are assumed to queue as much as those that can, see `_complete`.
    """
    labels = _labels(namespace, service)
    window = _window(scrape_interval_seconds)
    return _complete(f"max by (pod) (avg_over_time(te_queue_size{{{labels}}}[{window}s]))", labels)


def overload_rate(namespace: str, service: str, scrape_interval_seconds: int) -> str:
    """Requests per second that the pods behind ``service`` refuse with 429, over 4 scrapes and at least 30 s.

    The counter appears with the first refusal and is not 0 then, which rate() alone takes for its starting point. So
    it is read as 0 at each scrape that succeeded without it. Not counted is what was refused before the first scrape
    of a pod that succeeded, or while scrapes failed for longer than the window: when it happened is not known.

    Pods that cannot be read are assumed to refuse as much as those that can, see `_complete`.
    ``scrape_interval_seconds`` is 1 to 60.
    """
    labels = _labels(namespace, service)
    window = _window(scrape_interval_seconds)
    counter = f'max by (pod) (last_over_time(te_request_failure{{{labels},err="overloaded"}}[{window}s]))'
    up = f"max by (pod) (up{{{labels}}} == 1)"
    from_zero = f"({counter} and {up} or 0 * {up})[{window}s:{scrape_interval_seconds}s]"
    return _complete(f"rate({from_zero})", labels)


def _complete(per_pod: str, labels: str) -> str:
    """Sum of ``per_pod`` over the pods that can be read now, for all pods that serve.

    0 when pods can be read and have no series yet; nothing when none can be read. ``per_pod`` may still hold pods that
    have gone, as any function over a window does. Where scrapes fail, the sum is multiplied by (read + lost) / read.
    Lost is a pod whose scrape fails and worked within the last minutes: one that still starts has no open port and
    never worked, one that was scaled in is no target any more, and neither may ask for further replicas. A pod whose
    container restarts counts as lost meanwhile: an average share too many, for minutes.
    """
    up = f"up{{{labels}}}"
    read = f"count({up} == 1)"
    serving = f"count({up} and max_over_time({up}[{_LOST_SECONDS}s]) == 1)"
    return f"(sum({per_pod} and on (pod) {up} == 1) or 0 * {read}) * {serving} / {read}"


def _labels(namespace: str, service: str) -> str:
    return f"namespace={_quoted(namespace)},service={_quoted(service)}"


def _quoted(value: str) -> str:
    # The escapes of JSON are escapes of PromQL too; of characters beyond ASCII only those of JSON come in pairs.
    return json.dumps(value, ensure_ascii=False)


def _window(scrape_interval_seconds: int) -> int:
    return max(_SCRAPES * scrape_interval_seconds, _LEAST_WINDOW_SECONDS)
