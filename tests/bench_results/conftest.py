"""Artefacts made by hand, small and in the shape that each tool writes."""

import json

import pytest

from maitre.bench_results import BenchmarkResult, compare, judge, read_results
from maitre.bench_results.records import Run

SERVE_JSON = {
    "date": "20260101-120000",
    "endpoint_type": "vllm",
    "label": None,
    "model_id": "m",
    "tokenizer_id": "m",
    "num_prompts": 400,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 64,
    "duration": 20.0,
    "completed": 400,
    "failed": 0,
    "total_input_tokens": 200_000,
    "total_output_tokens": 100_000,
    "request_throughput": 20.0,
    "output_throughput": 5000.0,
    "total_token_throughput": 15_000.0,
    "mean_ttft_ms": 120.0,
    "median_ttft_ms": 100.0,
    "p99_ttft_ms": 400.0,
    "mean_tpot_ms": 11.0,
    "median_tpot_ms": 11.0,
    "p99_tpot_ms": 14.0,
    "mean_e2el_ms": 3000.0,
}


@pytest.fixture(scope="session")
def serve_json():
    """The object that `vllm bench serve --save-result` stores, with some keys changed; None drops one."""

    def make(**changes):
        record = SERVE_JSON | changes
        return {key: value for key, value in record.items() if value is not None or key == "label"}

    return make


@pytest.fixture
def load(tmp_path):
    """What a file of this content becomes: the runs, judged; the last path component is the file's name."""

    def read(content, name="result.txt") -> list[BenchmarkResult]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        runs, _ = read_results(str(path))
        return [judge(run) for run in runs]

    return read


@pytest.fixture(scope="session")
def surface_of():
    """The surface of rows given as keyword dictionaries of `Run`."""

    def make(*rows):
        runs = [Run(source=f"row {number}", tool="table", **row) for number, row in enumerate(rows)]
        return compare([judge(run) for run in runs])

    return make


@pytest.fixture(scope="session")
def codes():
    """The codes of an answer's findings."""
    return lambda answer: {finding.code for finding in answer.findings}
