"""The metrics in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastbuf.errors import ConfigError
from fastbuf.monitor.metrics import COUNTER, measure
from fastbuf.monitor.recorder import Recorder

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Collector:
    """A collector for a registry of prometheus-client.

    >>> prometheus_client.REGISTRY.register(Collector(recorder))           # doctest: +SKIP
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def collect(self) -> Iterator[Metric]:
        """Each metric with its current samples."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for metric, values in measure(self._recorder).items():
            kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in sorted(values.items()):
                family.add_metric(labels, value)
            yield family


def exposition(recorder: Recorder) -> bytes:
    """The response of ``/metrics``.

    Raises
    ------
    ConfigError
        The package prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError as error:
        raise ConfigError("/metrics needs prometheus-client: pip install 'fastbuf[monitor]'") from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(recorder))
    return generate_latest(registry)
