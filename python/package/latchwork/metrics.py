"""Numbers about the locks of this process: for Prometheus, and for whatever else reads :func:`snapshot`.

>>> import latchwork.metrics
>>> with latchwork.connect("mem:") as locks, locks.lock("stock"):
...     held = latchwork.metrics.snapshot()["latchwork_held"]
...     [(sample.labels["store"], sample.value) for sample in held.samples if sample.value]
[('mem:', 1.0)]

With ``prometheus_client``: ``REGISTRY.register(latchwork.metrics.Collector())``. With OpenTelemetry:
:func:`latchwork.otel.instrument`. Keys are not labels, because there may be many.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Tuple

from . import _native

__all__ = ["Collector", "Metric", "Sample", "snapshot"]


@dataclass(frozen=True)
class Sample:
    """A number."""

    #: ``store``, and what else tells it from the others.
    labels: Dict[str, str]
    #: Of a histogram, the sum.
    value: float
    #: Of a histogram: upper bounds in seconds, and how many were not longer.
    buckets: Tuple[Tuple[float, int], ...] = ()
    #: Of a histogram: how many there were.
    count: int = 0


@dataclass(frozen=True)
class Metric:
    """A metric, and its number for each store."""

    name: str
    #: ``"gauge"``, ``"counter"`` or ``"histogram"``.
    kind: str
    help: str
    samples: List[Sample] = field(default_factory=list)


_HELP = {
    "latchwork_held": "locks that this process holds now",
    "latchwork_waiting": "acquires that wait now",
    "latchwork_acquired": "grants of the store, and whether the acquire had to wait",
    "latchwork_handovers": "holds that were handed over inside of the process",
    "latchwork_blocked_tries": "tries of waiters that were blocked",
    "latchwork_abandoned_waits": "waits that ended without the lock",
    "latchwork_renewals": "renewals, by result",
    "latchwork_lost": "holds that ended without a release, by reason",
    "latchwork_suspect": "holds that came into doubt",
    "latchwork_clock_events": "steps and changes of rate of the store's clock",
    "latchwork_failed_tries": "tries that failed with an error",
    "latchwork_settled": "abandoned claims that were released in the background",
    "latchwork_release_failures": "releases that failed",
    "latchwork_wait_seconds": "how long an acquire that succeeded took",
    "latchwork_hold_seconds": "how long a hold lasted",
    "latchwork_renewal_seconds": "how long a renewal took",
}


def snapshot() -> Dict[str, Metric]:
    """Returns the numbers of this process now, by their names. Those of a forked child begin at 0."""
    gauges, counters, histograms = _native.counts()
    found: Dict[str, Metric] = {}

    def add(name: str, kind: str, sample: Sample) -> None:
        found.setdefault(name, Metric(name, kind, _HELP[name])).samples.append(sample)

    for store, held, waiting in gauges:
        add("latchwork_held", "gauge", Sample({"store": store}, float(held)))
        add("latchwork_waiting", "gauge", Sample({"store": store}, float(waiting)))
    for store, name, label, value, number in counters:
        add(name, "counter", Sample({"store": store, **({label: value} if label else {})}, float(number)))
    for store, name, buckets, total, count in histograms:
        add(name, "histogram", Sample({"store": store}, total, tuple(buckets), count))
    return found


class Collector:
    """What ``prometheus_client`` collects: ``REGISTRY.register(latchwork.metrics.Collector())``.

    It is for one process: the mode of ``prometheus_client`` for several does not ask collectors. Serve the metrics of
    each worker by itself there.
    """

    def describe(self) -> List[Any]:
        """Nothing: it collects what there is."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yields the metrics, as families of ``prometheus_client``."""
        families: Any = importlib.import_module("prometheus_client.core")
        for metric in snapshot().values():
            if metric.kind == "histogram":
                family = families.HistogramMetricFamily(metric.name, metric.help, labels=["store"])
                for sample in metric.samples:
                    buckets = [(str(bound), float(below)) for bound, below in sample.buckets]
                    buckets.append(("+Inf", float(sample.count)))
                    family.add_metric([sample.labels["store"]], buckets=buckets, sum_value=sample.value)
            else:
                make = families.GaugeMetricFamily if metric.kind == "gauge" else families.CounterMetricFamily
                labels = list(metric.samples[0].labels)
                family = make(metric.name, metric.help, labels=labels)
                for sample in metric.samples:
                    family.add_metric([sample.labels[label] for label in labels], sample.value)
            yield family
