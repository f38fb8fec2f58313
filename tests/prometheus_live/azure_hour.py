"""An hour of Azure's conversation traffic as samples of vLLM's metrics, in any spelling of their names.

Load it by its path, as servers.py. The counts are derived from a trace of Azure/AzurePublicDataset (2023), CC-BY-4.0;
benchmarks/traffic_hour.py makes them.
"""

import json
import re
from pathlib import Path

START_S = 1_700_000_000
HOUR = json.loads(Path(__file__).with_name("data").joinpath("azure_hour.json").read_text())
STEP_S = HOUR["step_s"]
NUM_STEPS = len(HOUR["vllm:num_requests_running"])
END_S = START_S + NUM_STEPS * STEP_S
HISTOGRAMS = [name for name, value in HOUR.items() if isinstance(value, dict)]
NUM_REQUESTS = sum(map(sum, HOUR["vllm:request_prompt_tokens"]["counts"]))


def mean(family):
    return sum(HOUR[family]["sums"]) / NUM_REQUESTS


SPELLINGS = {
    "vLLM's own": lambda name: name,
    "relabelled": lambda name: name.replace(":", "_"),
    "Ray Serve": lambda name: f"ray_{name.replace(':', '_')}",
    "OpenTelemetry": lambda name: (
        re.sub(r"_total$", "", name.replace(":", "_")) + ("_ratio" if "num_requests" in name else "")
    ),
}


def history(model="Qwen/Qwen2.5-14B", engines=("0",), spelling="vLLM's own", every=1, **labels):
    """OpenMetrics text: each engine served the whole hour; a share of 1/`every` of the requests counts."""
    write, lines = SPELLINGS[spelling], []
    for engine in engines:
        tags = {"model_name": model, "engine": engine, "instance": "gpu-1:8000"} | labels
        for name, value, more, step in _samples(every):
            told = ",".join(f'{key}="{text}"' for key, text in (tags | more).items())
            lines.append(f"{write(name)}{{{told}}} {value} {START_S + step * STEP_S}")
    return "\n".join(lines)


def _samples(every):
    for family in HISTOGRAMS:
        yield from _histogram(family, HOUR[family], every)
    finished = _cumulative(sum(row) // every for row in HOUR["vllm:request_prompt_tokens"]["counts"])
    for step, total in enumerate(finished):
        yield "vllm:request_success_total", total, {"finished_reason": "stop"}, step
        yield "vllm:request_success_total", 0, {"finished_reason": "length"}, step
        yield "vllm:prefix_cache_queries_total", 1000 * total, {}, step
        yield "vllm:prefix_cache_hits_total", 250 * total, {}, step
        yield "vllm:request_params_max_tokens_sum", HOUR["max_tokens"] * total, {}, step
        yield "vllm:request_params_max_tokens_count", total, {}, step
        for bound, share in (("1000.0", 0), ("2000.0", 1), ("+Inf", 1)):
            yield "vllm:request_params_max_tokens_bucket", share * total, {"le": bound}, step
    for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        for step, value in enumerate(HOUR[gauge], start=1):
            yield gauge, value, {}, step


def _histogram(family, counted, every):
    bounds = [*map(float, counted["bounds"]), "+Inf"]
    for column, bound in enumerate(bounds):
        below = (sum(count // every for count in row[: column + 1]) for row in counted["counts"])
        for step, value in enumerate(_cumulative(below)):
            yield f"{family}_bucket", value, {"le": str(bound)}, step
    for step, value in enumerate(_cumulative(sum(count // every for count in row) for row in counted["counts"])):
        yield f"{family}_count", value, {}, step
    for step, value in enumerate(_cumulative(total / every for total in counted["sums"])):
        yield f"{family}_sum", value, {}, step


def _cumulative(increments):
    total = 0
    yield total
    for increment in increments:
        total += increment
        yield round(total, 3)
