"""The server's /metrics page: vLLM 0.32's families, labels and buckets, as recorded from a running server."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_STEP = tuple(2**power for power in range(15) if power not in (1, 2))

_REASONS = ("stop", "length", "abort", "error", "repetition")
_Values = dict[str, tuple[str, ...]]
"""A label and the values that it is shown with."""

_COUNTERS: dict[str, tuple[str, _Values]] = {
    "estimated_flops_per_gpu": ("Estimated floating point operations.", {}),
    "estimated_read_bytes_per_gpu": ("Estimated bytes read from memory.", {}),
    "estimated_write_bytes_per_gpu": ("Estimated bytes written to memory.", {}),
    "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", {}),
    "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", {}),
    "external_prefix_cache_queries": ("Prompt tokens looked up in an external prefix cache.", {}),
    "external_prefix_cache_hits": ("Prompt tokens found in an external prefix cache.", {}),
    "mm_cache_queries": ("Items looked up in the multi-modal cache.", {}),
    "mm_cache_hits": ("Items found in the multi-modal cache.", {}),
    "num_preemptions": ("Sequences that lost their slot to others.", {}),
    "prompt_tokens": ("Prompt tokens read.", {}),
    "prompt_tokens_by_source": (
        "Prompt tokens, by where they came from.",
        {"source": ("local_compute", "local_cache_hit", "external_kv_transfer")},
    ),
    "prompt_tokens_cached": ("Prompt tokens that were cached.", {}),
    "prompt_tokens_cached_by_source": (
        "Cached prompt tokens, by where they came from.",
        {"source": ("device", "host", "p2p", "disk", "external_unspecified")},
    ),
    "generation_tokens": ("Tokens generated.", {}),
    "request_success": ("Requests that ended, by reason.", {"finished_reason": _REASONS}),
    "admission_rejections": (
        "Requests that were not let in, by reason.",
        {"reason": ("max_num_queued_reqs", "max_num_queued_tokens")},
    ),
}
_GAUGES: dict[str, tuple[str, _Values]] = {
    "num_requests_running": ("Sequences that hold a slot.", {}),
    "num_requests_waiting": ("Requests that wait for a slot.", {}),
    "num_requests_waiting_by_reason": ("Requests that wait, by reason.", {"reason": ("capacity", "deferred")}),
    "engine_sleep_state": (
        "Whether the engine sleeps.",
        {"sleep_state": ("awake", "weights_offloaded", "discard_all")},
    ),
    "kv_cache_usage_perc": ("Share of the key-value cache in use.", {}),
}
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "request_prompt_tokens": ("Prompt tokens of a request.", _TOKENS),
    "request_generation_tokens": ("Generated tokens of a request.", _TOKENS),
    "iteration_tokens_total": ("Tokens of a step.", _STEP),
    "request_max_num_generation_tokens": ("Most generated tokens of a request.", _TOKENS),
    "request_params_n": ("The n of a request.", _TOKENS[:5]),
    "request_params_max_tokens": ("The max_tokens of a request.", _TOKENS),
    "time_to_first_token_seconds": ("Arrival to first token.", _FIRST_TOKEN),
    "inter_token_latency_seconds": ("Time between two tokens.", _PER_TOKEN),
    "request_time_per_output_token_seconds": ("Mean time between tokens of a request.", _PER_TOKEN),
    "e2e_request_latency_seconds": ("Arrival to last token.", _LATENCY),
    "request_queue_time_seconds": ("Arrival to slot.", _LATENCY),
    "request_inference_time_seconds": ("Slot to last token.", _LATENCY),
    "request_prefill_time_seconds": ("Slot to first token.", _LATENCY),
    "request_decode_time_seconds": ("First to last token.", _LATENCY),
    "request_num_preemptions": ("Times that a request lost its slot.", (1, 2, 3, 4, 5, 10, 20)),
    "request_prefill_kv_computed_tokens": ("Prompt tokens of a request that were computed.", _TOKENS),
}


class _Histogram:
    def __init__(self, borders: tuple[float, ...]) -> None:
        self.borders = borders
        self.counts = [0] * (len(borders) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.borders, value)] += 1
        self.sum += value


class Metrics:
    """Counters and histograms of one engine; gauges are passed when the page is written."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._created = time.time()
        self._counters: dict[tuple[str, str], float] = {}
        self._histograms = {name: _Histogram(borders) for name, (_, borders) in _HISTOGRAMS.items()}

    def add(self, name: str, amount: float, label: str = "") -> None:
        """Raise a counter, of the series with this value of its own label."""
        self._counters[name, label] = self._counters.get((name, label), 0.0) + amount

    def observe(self, name: str, value: float) -> None:
        """Put a value into a histogram."""
        self._histograms[name].observe(value)

    def _labels(self, name: str, extra: Iterable[tuple[str, str]] = ()) -> str:
        labels = {"model_name": self._model, **dict(extra)}
        if name != "admission_rejections":
            labels["engine"] = "0"
        return "{" + ",".join(f'{key}="{value}"' for key, value in sorted(labels.items())) + "}"

    def _series(self, name: str, values: _Values) -> Iterator[tuple[str, str]]:
        """Own label value and rendered labels of every series of a family."""
        if not values:
            yield "", self._labels(name)
        for label, shown in values.items():
            for value in shown:
                yield value, self._labels(name, [(label, value)])

    def page(self, gauges: dict[tuple[str, str], float]) -> str:
        """The page; `gauges` gives the values that are not 0, by name and own label value."""
        lines: list[str] = []

        def family(name: str, kind: str, text: str) -> None:
            lines.append(f"# HELP vllm:{name} {text}")
            lines.append(f"# TYPE vllm:{name} {kind}")

        for name, (text, values) in _GAUGES.items():
            family(name, "gauge", text)
            for own, labels in self._series(name, values):
                lines.append(f"vllm:{name}{labels} {float(gauges.get((name, own), 0.0))}")
        for name, (text, values) in _COUNTERS.items():
            family(f"{name}_total", "counter", text)
            for own, labels in self._series(name, values):
                lines.append(f"vllm:{name}_total{labels} {float(self._counters.get((name, own), 0.0))}")
            family(f"{name}_created", "gauge", text)
            lines += [f"vllm:{name}_created{labels} {self._created}" for _, labels in self._series(name, values)]
        for name, (text, _) in _HISTOGRAMS.items():
            family(name, "histogram", text)
            histogram = self._histograms[name]
            total = 0
            for border, number in zip((*histogram.borders, float("inf")), histogram.counts, strict=True):
                total += number
                le = "+Inf" if border == float("inf") else str(float(border))
                lines.append(f"vllm:{name}_bucket{self._labels(name, [('le', le)])} {float(total)}")
            lines.append(f"vllm:{name}_count{self._labels(name)} {float(total)}")
            lines.append(f"vllm:{name}_sum{self._labels(name)} {histogram.sum}")
            family(f"{name}_created", "gauge", text)
            lines.append(f"vllm:{name}_created{self._labels(name)} {self._created}")
        family("cache_config_info", "gauge", "Configuration of the key-value cache.")
        lines.append(f'vllm:cache_config_info{{block_size="128",engine="0",model_name="{self._model}"}} 1.0')
        return "\n".join(lines) + "\n"
