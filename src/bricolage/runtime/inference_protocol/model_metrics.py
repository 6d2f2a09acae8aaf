"""What Prometheus reads of a server."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bricolage.runtime.inference_protocol.served_model import ServedModels

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the histogram's buckets."""


class ModelMetrics:
    """Counts of requests by model, protocol and status, and what the streams did."""

    def __init__(self, models: ServedModels) -> None:
        self._registry = CollectorRegistry()
        labels = ("model", "protocol")
        self._answered = Counter(
            "bricolage_requests", "Requests that were answered.", (*labels, "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "bricolage_request_seconds",
            "From when a request had arrived until its answer was sent off.",
            labels,
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._registry.register(_StreamCollector(models))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def record(self, model: str, protocol: str, status: int, seconds: float) -> None:
        """A request was answered. `model` is "" where there is none of the name that was asked for."""
        self._answered.labels(model, protocol, str(status)).inc()
        self._seconds.labels(model, protocol).observe(seconds)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)


class _StreamCollector(Collector):
    """The statistics of each model's streams, when they are asked for."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        waiting = GaugeMetricFamily("bricolage_requests_waiting", "Requests in the queue.", labels=["model"])
        running = GaugeMetricFamily("bricolage_requests_running", "Requests that run now.", labels=["model"])
        ready = GaugeMetricFamily("bricolage_model_ready", "1 where the model takes requests.", labels=["model"])
        runs = CounterMetricFamily("bricolage_runs", "Runs of the model.", labels=["model"])
        rows = CounterMetricFamily("bricolage_rows", "Rows of requests in these runs.", labels=["model"])
        padding = CounterMetricFamily("bricolage_padding_rows", "Rows computed for nothing.", labels=["model"])
        cancelled = CounterMetricFamily("bricolage_requests_cancelled", "Left the queue.", labels=["model"])
        for model in self._models:
            ready.add_metric([model.name], float(model.ready))
            if not model.ready:
                continue
            statistics = model.executable.statistics()
            waiting.add_metric([model.name], statistics.waiting)
            running.add_metric([model.name], statistics.running)
            runs.add_metric([model.name], statistics.batches)
            rows.add_metric([model.name], statistics.rows)
            padding.add_metric([model.name], statistics.padding)
            cancelled.add_metric([model.name], statistics.cancelled)
        yield from (ready, waiting, running, runs, rows, padding, cancelled)
