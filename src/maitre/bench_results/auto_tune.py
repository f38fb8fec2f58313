"""`result.txt` of vLLM's `benchmarks/auto_tune/auto_tune.sh`: one line a cell."""

from __future__ import annotations

import re

from maitre.bench_results.names import count, number
from maitre.bench_results.records import Run

_CELL = re.compile(r"^max_num_seqs: (\d+), max_num_batched_tokens: (\d+)(.*)$", re.MULTILINE)
_FIGURE = re.compile(r"(request_rate|e2el|through ?put|goodput): (\d+(?:\.\d+)?)")


def read_auto_tune(text: str, source: str) -> list[Run]:
    """A run a cell; none when the text is no such file.

    The script lowers the request rate until the p99 end-to-end latency holds its limit, so the rate is a result here,
    not the client's choice, and is left out.
    """
    runs = []
    for position, (seqs, tokens, rest) in enumerate(_CELL.findall(text), 1):
        figures = {
            name.replace(" ", ""): found
            for name, value in _FIGURE.findall(rest)
            if (found := number(value)) is not None
        }
        latencies = {"p99_e2el_ms": figures["e2el"]} if "e2el" in figures else {}
        runs.append(
            Run(
                source=f"{source}, cell {position}",
                tool="auto_tune.sh",
                max_num_seqs=count(seqs),
                max_num_batched_tokens=count(tokens),
                requests_per_s=figures.get("throughput"),
                latencies=latencies,
                failure=None if "throughput" in figures else rest.strip() or "no figures on the line",
            )
        )
    return runs
