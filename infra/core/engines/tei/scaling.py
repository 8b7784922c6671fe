"""When a TEI workload asks for another replica: planned thresholds, and those of the stack file within limits."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from infra.core.capacity import Scaling, Sizing
from infra.core.capacity.scaling import derive
from infra.core.engines.spec import Trigger
from infra.core.engines.tei import signals
from infra.core.settings import TeiWorkload

Refuse = Callable[[str, object, str, str], None]
Because = Callable[[str, object, str], None]

#: Short texts that one batch may hold; more gain nothing and take places of the queue.
_MOST_TEXTS = 4096
#: Longest that Kubernetes takes (autoscaling/v2).
_LONGEST_PERIOD = 1800
_LONGEST_STABILIZATION = 3600


@dataclass(frozen=True)
class Thresholds:
    """What KEDA is told, and the batch that it rests on."""

    scaling: Scaling
    #: MAX_BATCH_REQUESTS: two batches are outside of te_queue_size, so their size has to be known.
    batch_texts: int

    @property
    def least_concurrent(self) -> int:
        """Places in the queue below which TEI refuses requests before the gauge reaches the threshold."""
        return 2 * self.batch_texts + self.scaling.queue_threshold + 1


@dataclass(frozen=True)
class Pace:
    """How a replica works: texts of a batch, the seconds that it takes, and those from a Pending pod to Ready."""

    texts: int
    step_seconds: float
    ready_seconds: int


def thresholds(
    workload: TeiWorkload, sizing: Sizing | None, pace: Pace, *, stand_in: bool, refuse: Refuse, because: Because
) -> Thresholds | None:
    """Thresholds of ``workload``; None where it is not scaled."""
    given = workload.scaling
    if given is None:
        return None
    if sizing:
        planned, texts = sizing.scaling, sizing.max_batch_requests
    else:
        texts = workload.max_batch_requests or min(pace.texts, _MOST_TEXTS)
        planned = derive(
            each=texts / pace.step_seconds,
            step=pace.step_seconds,
            texts=texts,
            latency_ms=None,
            ready_seconds=pace.ready_seconds,
        )
    if given.queue_threshold is None:
        because("scaling.queueThreshold", planned.queue_threshold, f"waiting texts per replica: {planned.why}")
    if given.overload_per_second is None:
        because(
            "scaling.overloadPerSecond",
            planned.overload_per_second,
            "refused requests per replica: 1 % of the texts/s that its batches do at the least",
        )
    if given.scale_up_period_seconds is None:
        why = f"a replica is ready after {pace.ready_seconds} s; more asked for before would be too many"
        because("scaling.scaleUpPeriodSeconds", f"{min(planned.scale_up_period_seconds, _LONGEST_PERIOD)} s", why)
    stabilization = given.scale_down_stabilization_seconds
    if stabilization is None:
        why = "twice the time to get a replica back, 300 s at least"
        because(
            "scaling.scaleDownStabilizationSeconds",
            f"{min(planned.scale_down_stabilisation_seconds, _LONGEST_STABILIZATION)} s",
            why,
        )
    elif stabilization < (least := min(pace.ready_seconds, _LONGEST_STABILIZATION)) and not stand_in:
        refuse(
            "scaling.scaleDownStabilizationSeconds",
            stabilization,
            f"{least} or more",
            f"A replica that goes is back after {pace.ready_seconds} s (image pull, weights, warm-up), so that every "
            "pause of the load would be paid with that wait; only stand-ins (images.standInRegistry) may.",
        )
    return Thresholds(
        replace(
            planned,
            queue_threshold=given.queue_threshold or planned.queue_threshold,
            overload_per_second=given.overload_per_second or planned.overload_per_second,
            scale_up_period_seconds=given.scale_up_period_seconds
            or min(planned.scale_up_period_seconds, _LONGEST_PERIOD),
            scale_down_stabilisation_seconds=(
                min(planned.scale_down_stabilisation_seconds, _LONGEST_STABILIZATION)
                if stabilization is None
                else stabilization
            ),
        ),
        texts,
    )


def triggers(scaling: Scaling, namespace: str, service: str, scrape_seconds: int) -> tuple[Trigger, ...]:
    """What KEDA asks about the pods behind ``service``. With large batches the queue stays short while requests are
    refused, so both are asked, always.
    """
    where = (namespace, service, scrape_seconds)
    return (
        Trigger("queue", signals.queue_depth(*where), str(scaling.queue_threshold)),
        Trigger("overload", signals.overload_rate(*where), f"{scaling.overload_per_second:g}"),
    )
