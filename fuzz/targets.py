"""Every reader of foreign input that is fuzzed: its seeds, and the mutation that keeps its format's shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import file_readers as files
import mutate
import server_readers as server
import traffic_readers as traffic
from contract import Target

import examples

Mutation = Callable[[bytes, bytes, list[bytes], Random], bytes]


@dataclass(frozen=True)
class Fuzzed:
    """One reader."""

    target: Target
    mutation: Mutation
    places: tuple[str, ...] = ()
    """Where seeds are collected from, as `seeds.collect` takes it."""
    examples: tuple[bytes, ...] = ()
    """Further seeds."""


_JSON, _LINES, _PROTOBUF = mutate.mutate_json, mutate.splice_lines, mutate.mutate_protobuf
_TABLES = ("tests/workload/test_*.py", "tests/cli/test_profile*.py", "shared:data/traces/*.csv")
_LANGFUSE = ("tests/workload/langfuse/*.py", "shared:cases/langfuse*")
_BENCH = ("tests/bench_results/*.py", "tests/cli/test_import.py", "shared:cases/bench*", "shared:cases/surface*")
_LOGS = ("tests/vllm/test_startup*.py", "tests/vllm/conftest.py", "tests/cli/test_budget_log.py", "shared:cases/*.log")
_SCRAPES = ("tests/vllm/test_metric*.py", "tests/trial/test_server_metrics.py", "shared:cases/*.prom")
_SERVING = ("tests/verify/**/*.py", "tests/vllm/test_stats*.py", "tests/vllm/test_iter*.py", "shared:cases/*.log")
_MODELS = (
    *("tests/models/*.py", "tests/test_models.py", "tests/kv_budget/*.py", "src/maitre/data/models/*.json"),
    "shared:cases/config*.json",
)
_OPTIONS = ("tests/cli/*.py", "tests/test_slo.py", "tests/test_units.py", "tests/trial/test_command.py")

_COLUMNS = (
    b"tokens|out|when:ms|\ntokens,out,when\n10,20,1000\n30,40,2000\n",
    b"usage.p|usage.c|t|took:ms\n" + b'{"usage": {"p": 1, "c": 2}, "t": "2026-05-01T12:00:00Z", "took": 3}\n' * 2,
)
_SPECS = b"lognormal:500:0.8:250:0.8\nfixed:512:256\nttft_p95=500ms\n256x8192\n64,8K\nkv-cache-dtype=fp8\n7d\nmodel=m\n"
_PARQUET = {
    "prompt_tokens:i64": [1, 2, None], "output_tokens:u64": [3, 4, 5], "start_time:ns": [10**9, 2 * 10**9, None],
    "latency:duration": [1, 2, 3], "hash_ids": [[1], [2], [3]], "usage": [{"input": 1}, {"input": 2}, None],
    "type": ["GENERATION"] * 3, "traceId": ["a", "b", "c"], "requests_per_s:f64": [1.5, 2.5, 3.5],
}  # fmt: skip
_PAGE = {"data": [{"id": "a", "type": "GENERATION", "model": "m", "usageDetails": {"input": 1, "output": 2}}]}
_PAGES = (
    [_PAGE | {"meta": {"cursor": "x"}}, _PAGE | {"meta": {}}, _PAGE | {"meta": {}}],
    [{"status": 404}, *[_PAGE | {"meta": {"page": page, "totalPages": 2}} for page in (1, 1, 2)]],
    [{"status": 404}, {"status": 404}, {"status": 200, "body": {"version": "3.1"}}],
    [{"status": 429, "wait": "Wed, 21 Oct 2026 07:28:00 GMT"}, {"status": 500, "body": {"message": "m"}}, "<html>"],
)
_JOURNAL = (
    b'{"schema_version": "maitre-langfuse-journal-1", "window": [0, 1000], "begun_ms": 1699999999000}\n'
    b'{"until_ms": 500, "observations": [["a", "m", 1, 2, 0.1, 3, 0, 4, ""]]}\n'
)
_WORKLOAD = (
    b'{"schema_version": "maitre-workload-1", "name": "n", "source": "s", "prompt_tokens": [1, 2], "output_tokens": '
    b'[3, 4], "arrival_s": [0, 1.5], "latency_s": [1, 2], "prefix_hashes": [[1], [1, 2]], "prefix_block_tokens": 16}'
)

_SERVED = examples.served_scrapes()
_ANSWERS = examples.prometheus_answers()

TARGETS: dict[str, Fuzzed] = {
    "workload-lines": Fuzzed(traffic.workload, _LINES, (*_TABLES, "shared:data/traces/*.jsonl")),
    "workload-json": Fuzzed(traffic.workload, _JSON, ("tests/workload/test_*.py", "shared:cases/litellm*")),
    "workload-stored": Fuzzed(traffic.workload, _JSON, ("tests/workload/test_stored*.py",), (_WORKLOAD,)),
    "workload-columns": Fuzzed(traffic.columns, _LINES, ("tests/workload/test_column*.py",), _COLUMNS),
    "workload-printed": Fuzzed(traffic.profile_printed, _JSON, _TABLES),
    "otlp-json": Fuzzed(traffic.workload, _JSON, ("tests/workload/test_otlp*.py",), (examples.otlp_json(),)),
    "otlp-protobuf": Fuzzed(traffic.workload, _PROTOBUF, ("tests/workload/data/*.pb",), examples.otlp_protobuf()),
    "parquet": Fuzzed(traffic.parquet, _JSON, (), (json.dumps(_PARQUET).encode(),)),
    "parquet-bytes": Fuzzed(traffic.workload, _LINES, (), examples.parquet()),
    "sharegpt": Fuzzed(traffic.workload, _JSON, ("tests/workload/test_public_formats.py",), examples.sharegpt()),
    "servegen": Fuzzed(traffic.workload, _JSON, ("tests/workload/test_public_formats.py",), examples.servegen()),
    "mooncake": Fuzzed(traffic.workload, _JSON, ("shared:data/traces/*.jsonl", "tests/workload/test_shared*.py")),
    "vllm-log": Fuzzed(traffic.workload, _LINES, ("tests/workload/test_vllm_logs.py", "tests/workload/data/*.log")),
    "langfuse-export": Fuzzed(traffic.langfuse_export, _JSON, _LANGFUSE, (json.dumps(_PAGE).encode(),)),
    "langfuse-pages": Fuzzed(traffic.langfuse_pages, _JSON, (), tuple(json.dumps(page).encode() for page in _PAGES)),
    "langfuse-journal": Fuzzed(traffic.langfuse_journal, _JSON, (), (_JOURNAL,)),
    "startup-log": Fuzzed(server.startup, _LINES, _LOGS),
    "startup-log-printed": Fuzzed(server.budget_log, _LINES, _LOGS),
    "serve-flags": Fuzzed(server.serve_flags, _LINES, (*_LOGS, "tests/trial/test_command.py")),
    "server-failure": Fuzzed(server.failures, _LINES, ("tests/vllm/test_failures.py", "shared:cases/*.log")),
    "scrape": Fuzzed(server.scrape, _LINES, _SCRAPES),
    "scrape-printed": Fuzzed(server.budget_metrics, _LINES, (*_SCRAPES, "tests/cli/test_budget_metrics.py")),
    "serving-log": Fuzzed(server.serving_log, _LINES, _SERVING),
    "verify-log": Fuzzed(server.verify_log, _LINES, _SERVING),
    "saved-scrapes": Fuzzed(server.saved_scrapes, _LINES, (*_SCRAPES, "tests/verify/**/*.py"), (_SERVED,)),
    "verify-metrics": Fuzzed(server.verify_metrics, _LINES, _SCRAPES, (_SERVED,)),
    "prometheus": Fuzzed(traffic.prometheus, _JSON, (), (_ANSWERS,)),
    "model-config": Fuzzed(files.model_config, _JSON, _MODELS),
    "model-printed": Fuzzed(files.budget_model, _JSON, _MODELS),
    "weight-index": Fuzzed(files.weight_index, _JSON, _MODELS, (b'{"metadata": {"total_size": 1e9}}',)),
    "bench-lines": Fuzzed(files.bench_results, _LINES, _BENCH),
    "bench-json": Fuzzed(files.bench_results, _JSON, _BENCH),
    "bench-printed": Fuzzed(files.import_printed, _JSON, _BENCH),
    "study": Fuzzed(files.study, _JSON, (), examples.records()[:2]),
    "steps": Fuzzed(files.steps, _LINES, (), (examples.npz(),)),
    "recording": Fuzzed(files.recording, _JSON, ("tests/test_recording.py",), (examples.recording(),)),
    "records": Fuzzed(files.records, _JSON, (), examples.records()),
    "options": Fuzzed(files.options, _LINES, _OPTIONS, (_SPECS,)),
    "command-line": Fuzzed(files.command_line, _LINES, _OPTIONS),
    "event-stream": Fuzzed(server.stream, _LINES, ("tests/trial/load/*.py", "tests/trial/test_probe.py")),
}
