"""When to ask for another replica, and how long to wait before giving one back."""

import math
from dataclasses import dataclass

#: The HPA looks every 15 s (its default, and fixed on EKS).
_SYNC_SECONDS = 15
#: The HPA's own default for scale-down.
_LEAST_STABILISATION = 300
#: Share of a replica's throughput whose refusal (429) is taken as overload.
_OVERLOAD_SHARE = 0.01
#: Most clients give up after this, so more texts need not wait than can be answered in it.
PATIENCE_SECONDS = 60
#: Places for texts that one server is asked to keep.
_MOST_PLACES = 65_536
#: Texts that a client may send at once by TEI's default; a list of n texts takes n places.
_CLIENT_BATCH = 32


@dataclass(frozen=True)
class Scaling:
    """What KEDA is told, per replica, and the limits of the engine that it rests on. Seconds throughout."""

    #: te_queue_size per replica at which another one is asked for (AverageValue over a sum).
    queue_threshold: int
    #: Rate of te_request_failure{err="overloaded"} per replica and second at which another one is asked for: with large
    #: batches the queue stays short while requests are refused.
    overload_per_second: float
    max_concurrent_requests: int
    #: Replicas may double once per this period: a replica asked for has not been ready before.
    scale_up_period_seconds: int
    #: A replica is given back when it was not needed for this long.
    scale_down_stabilisation_seconds: int
    #: How the threshold came about.
    why: str


def derive(*, each: float, step: float, texts: int, latency_ms: float | None, ready_seconds: int) -> Scaling:
    """Thresholds for replicas that do ``each`` texts/s in steps of ``step`` seconds with up to ``texts`` texts a batch.

    The queue may hold what fits between two steps (running, own) and the latency objective, and one step's worth where
    there is none. ``ready_seconds`` is the time from a Pending pod to a loaded model.
    """
    if latency_ms is None:
        threshold, why = each * step, "one step's worth: no latency objective"
    else:
        slack = latency_ms / 1000 - 2 * step
        threshold, why = each * slack, f"({latency_ms:g} ms - 2 steps of {step * 1000:.1f} ms) x {each:.1f} texts/s"
    most = min(each * PATIENCE_SECONDS, _MOST_PLACES / 2 - texts)
    if threshold > most:
        threshold = most
        why += f", cut to what {PATIENCE_SECONDS} s of waiting and {_MOST_PLACES:,} places hold"
    # What is a whole number but for rounding stays one.
    queue = max(1, math.floor(threshold + 1e-6))
    stabilisation = max(_LEAST_STABILISATION, 2 * ready_seconds)
    return Scaling(
        queue_threshold=queue,
        overload_per_second=max(0.1, round(_OVERLOAD_SHARE * each, 1)),
        # The gauge leaves out two batches (running and prefetched), so it can reach twice the threshold.
        max_concurrent_requests=max(2 * texts + 2 * queue, 2 * _CLIENT_BATCH),
        scale_up_period_seconds=max(_SYNC_SECONDS, ready_seconds),
        scale_down_stabilisation_seconds=stabilisation,
        why=why,
    )
