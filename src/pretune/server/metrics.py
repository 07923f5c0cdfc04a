"""Counters and histograms of the server, in the text format of Prometheus."""

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Histogram:
    """Counts of values up to each bound, their sum and number."""

    bounds: Sequence[float]
    counts: Counter[int] = field(default_factory=Counter)  # by the place of the smallest bound above
    total: float = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def format(self, name: str, labels: Labels) -> Iterator[str]:
        """Yield the lines of the histogram."""
        cumulative_count = 0
        for place, bound in enumerate((*self.bounds, "+Inf")):
            cumulative_count += self.counts[place]
            yield f"{name}_bucket{_format_labels((*labels, ('le', str(bound))))} {cumulative_count}"
        yield f"{name}_sum{_format_labels(labels)} {self.total:.6f}"
        yield f"{name}_count{_format_labels(labels)} {cumulative_count}"


HELP = {
    "pretune_requests_total": ("counter", "HTTP requests by path and status."),
    "pretune_request_seconds": ("histogram", "Seconds from the end of a request to the end of its response."),
    "pretune_tokens_total": ("counter", "Tokens of prompts and of generated texts."),
    "pretune_batch_size": ("histogram", "Texts of a batch."),
    "pretune_batch_seconds": ("histogram", "Seconds of a batch, or of a decoding step."),
    "pretune_model_errors_total": ("counter", "Requests that failed in the model."),
    "pretune_queue_length": ("gauge", "Requests that wait for a model."),
    "pretune_running_texts": ("gauge", "Texts that a model is generating."),
}


class Metrics:
    """Measurements of all models and paths; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: Counter[tuple[str, Labels]] = Counter()
        self._histograms: dict[tuple[str, Labels], Histogram] = {}

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        """Count a response."""
        self._count("pretune_requests_total", (("path", path), ("status", str(status))))
        self._observe("pretune_request_seconds", (("path", path),), seconds, SECONDS)

    def observe_batch(self, model: str, kind: str, size: int, start: float) -> None:
        """Record the size of a batch, and the time since its start."""
        labels = (("model", model), ("kind", kind))
        self._observe("pretune_batch_size", labels, size, SIZES)
        self._observe("pretune_batch_seconds", labels, time.monotonic() - start, SECONDS)

    def count_tokens(self, model: str, kind: str, tokens: int) -> None:
        """Count tokens."""
        self._count("pretune_tokens_total", (("model", model), ("kind", kind)), tokens)

    def count_error(self, model: str) -> None:
        """Count a request that failed in the model."""
        self._count("pretune_model_errors_total", (("model", model),))

    def format(self, gauges: Mapping[str, Mapping[str, int]]) -> str:
        """Return the text format; `gauges` are current values by name and model."""
        lines: list[str] = []
        with self._lock:
            for name, (kind, text) in HELP.items():
                lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
                values = {labels: value for (other, labels), value in sorted(self._counters.items()) if other == name}
                values |= {(("model", model),): gauge for model, gauge in gauges.get(name, {}).items()}
                lines += [f"{name}{_format_labels(labels)} {value}" for labels, value in values.items()]
                for (other, labels), histogram in sorted(self._histograms.items(), key=lambda item: item[0]):
                    lines += histogram.format(name, labels) if other == name else ()
        return "\n".join(lines) + "\n"

    def _count(self, name: str, labels: Labels, amount: int = 1) -> None:
        with self._lock:
            self._counters[name, labels] += amount

    def _observe(self, name: str, labels: Labels, value: float, bounds: Sequence[float]) -> None:
        with self._lock:
            self._histograms.setdefault((name, labels), Histogram(bounds)).add(value)


def _format_labels(labels: Labels) -> str:
    """Return labels in braces, escaped.

    >>> _format_labels((("model", 'a"b'),))
    '{model="a\\\\"b"}'
    """
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return "{" + ",".join(f'{name}="{value.translate(escapes)}"' for name, value in labels) + "}"
