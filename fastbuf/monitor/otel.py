"""The metrics as OpenTelemetry's observable instruments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fastbuf.errors import ConfigError
from fastbuf.monitor.metrics import COUNTER, METRICS, Metric, measure
from fastbuf.monitor.recorder import Recorder


def instrument(recorder: Recorder, meter_provider: Any = None) -> list[Any]:
    """Make an observable instrument for each metric; it is read whenever the provider's reader collects.

    Their names are those of Prometheus with dots (``fastbuf.task.state.seconds``), their attributes its labels.

    Parameters
    ----------
    recorder
        The source of the values: ``server.recorder`` of a page, or one of your own.
    meter_provider
        OpenTelemetry's; default: the one that is set for the process.

    Returns
    -------
    list
        The instruments; they live as long as the provider.

    Raises
    ------
    ConfigError
        The package opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise ConfigError(
            "fastbuf.monitor.otel needs opentelemetry-api: pip install 'fastbuf[otel]', and an SDK with an exporter"
        ) from error
    meter = metrics.get_meter("fastbuf", meter_provider=meter_provider)
    instruments = []
    for metric in METRICS:
        make = meter.create_observable_counter if metric.kind == COUNTER else meter.create_observable_gauge
        name = metric.name.replace("_", ".")
        instruments.append(make(name, [_reader(recorder, metric)], unit=metric.unit, description=metric.help))
    return instruments


def _reader(recorder: Recorder, metric: Metric) -> Callable[[Any], Iterable[Any]]:
    def read(options: Any) -> Iterable[Any]:
        from opentelemetry.metrics import Observation

        for labels, value in measure(recorder)[metric].items():
            yield Observation(value, dict(zip(metric.labels, labels, strict=True)))

    return read
