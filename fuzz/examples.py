"""Seeds that are made instead of collected: one example of each stored record, after its schema, and binary files."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
from pydantic import BaseModel

from maitre.calibration.calibration import Calibration
from maitre.recording import Recording
from maitre.records import Study, Trial
from maitre.trial.dials import DialState
from maitre.trial.facts import ServerFacts
from maitre.trial.registry import StartedServer
from maitre.trial.run_files import _RunFile

STEP_COLUMNS = (
    "num_decodes", "decode_context_tokens", "num_prefills", "prefill_tokens", "prefill_attention_pairs",
    "num_preemptions", "output_end_s",
)  # fmt: skip


def record(model: type[BaseModel], **changes: Any) -> bytes:
    """A record whose fields are filled with the least that its schema allows."""
    schema = model.model_json_schema(by_alias=True)
    return json.dumps(_example(schema, schema.get("$defs", {})) | changes).encode()


def records() -> tuple[bytes, ...]:
    """Everything that maitre stores as JSON, but workloads and recordings."""
    return tuple(
        record(model) for model in (Study, Trial, ServerFacts, DialState, StartedServer, _RunFile, Calibration)
    )


def recording() -> bytes:
    """A recording of one run of three steps, whose .npz is `npz()`."""
    requests = {"arrival_s": [0, 1], "prompt_tokens": [5, 6], "output_tokens": [7, 8]}
    cell = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "steps": "steps", "num_steps": 3, "num_preemptions": 0}
    return record(
        Recording,
        requests=requests,
        step_columns=list(STEP_COLUMNS),
        request_columns=[],
        cells=[cell | {"engine_s": 3}],
    )


def npz() -> bytes:
    """Steps as a study and a recording keep them."""
    file = io.BytesIO()
    columns = {name: np.arange(3.0) for name in STEP_COLUMNS}
    np.savez_compressed(file, allow_pickle=False, steps=np.ones((3, 7)), **columns)
    return file.getvalue()


def _example(schema: dict[str, Any], known: dict[str, Any]) -> Any:
    if "$ref" in schema:
        return _example(known[schema["$ref"].rpartition("/")[2]], known)
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return _example(several[0], known)
    if fixed := schema.get("enum") or [schema[key] for key in ("const",) if key in schema]:
        return fixed[0]
    kind = schema.get("type")
    if kind == "object":
        return {name: _example(part, known) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        return [_example(item, known) for item in schema.get("prefixItems") or [schema.get("items", {})]]
    return {"string": "text", "boolean": True, "integer": _least(schema), "number": _least(schema)}.get(str(kind))


def _least(schema: dict[str, Any]) -> float:
    least = max(1, schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
    return 0.5 if schema.get("exclusiveMaximum", 2) <= 1 else int(least)


def served_scrapes() -> bytes:
    """Two scrapes, a minute apart, of a server that is working."""
    lines = []
    for minute in (1, 2):
        lines.append(f"# scraped 2026-11-07T12:0{minute}:00Z")
        for name, labels, value in _samples():
            told = ",".join(f'{key}="{text}"' for key, text in labels.items())
            lines.append(f"{name}{{{told}}} {value * minute}")
        lines.append("# EOF\n")
    return "\n".join(lines).encode()


def prometheus_answers() -> bytes:
    """The same from a Prometheus, at three moments."""
    times = (1_794_100_000, 1_794_100_060, 1_794_100_120)
    rows: list[dict[str, Any]] = [
        {"metric": {"__name__": name, **labels}, "values": [[time, str(value * i)] for i, time in enumerate(times)]}
        for name, labels, value in _samples()
    ]
    names = sorted({name for name, *_ in _samples()})
    buckets = [row | {"metric": {"le": row["metric"]["le"]}} for row in rows if "le" in row["metric"]][:5]
    told = {"names": names, "result": _matrix(rows), "buckets": _matrix(buckets)}
    return json.dumps({key: {"status": "success", "data": data} for key, data in told.items()}).encode()


def _matrix(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"resultType": "matrix", "result": rows}


def _samples() -> list[tuple[str, dict[str, str], float]]:
    """Name, labels and value of what vLLM exposes."""
    labels = {"engine": "0", "model_name": "m"}
    samples = [("vllm:cache_config_info", labels | {"num_gpu_blocks": "1000", "block_size": "16"}, 1.0)]
    for name, value in (
        ("num_requests_running", 100), ("num_requests_waiting", 3), ("kv_cache_usage_perc", 0.3),
        ("num_preemptions_total", 2), ("prompt_tokens_total", 5e5), ("generation_tokens_total", 2e5),
    ):  # fmt: skip
        samples.append((f"vllm:{name}", labels, float(value)))
    for name in (
        "request_prompt_tokens", "request_generation_tokens", "time_to_first_token_seconds",
        "inter_token_latency_seconds", "e2e_request_latency_seconds", "iteration_tokens_total",
    ):  # fmt: skip
        for count, le in enumerate(("0.01", "0.1", "10.0", "1000.0", "+Inf"), 1):
            samples.append((f"vllm:{name}_bucket", labels | {"le": le}, 100.0 * count))
        samples += [(f"vllm:{name}_sum", labels, 5e4), (f"vllm:{name}_count", labels, 500.0)]
    return samples


def otlp_json() -> bytes:
    """A model call, the agent above it, and a failed one."""
    return json.dumps(_OTLP).encode()


def otlp_protobuf() -> tuple[bytes, ...]:
    """The same as protobuf, alone and after its length."""
    from google.protobuf.json_format import ParseDict  # an optional dependency
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    message: bytes = ParseDict(_OTLP, TracesData()).SerializeToString()
    return message, len(message).to_bytes(4, "big") + message


def parquet() -> tuple[bytes, ...]:
    """A plain table and a nested one, compressed and not."""
    import polars as pl

    plain = {"prompt_tokens": [1, 2, 3], "output_tokens": [4, 5, None], "timestamp": [1.5, 2.5, 3.5]}
    nested = {"usage": [{"prompt_tokens": 1, "completion_tokens": 2}] * 3, "created_at": ["2026-05-01T12:00:00Z"] * 3}
    files = []
    for content, compression in (
        (plain, "uncompressed"),
        (plain, "snappy"),
        (nested, "zstd"),
        (nested, "uncompressed"),
    ):
        file = io.BytesIO()
        pl.DataFrame(content).write_parquet(file, compression=compression)
        files.append(file.getvalue())
    return tuple(files)


def sharegpt() -> tuple[bytes, ...]:
    """Conversations whose turns carry lengths."""
    turns = [{"from": "human", "num_tokens": 5}, {"from": "gpt", "num_tokens": 7}]
    return (json.dumps([{"id": "a", "conversations": turns * 2}] * 2).encode(),)


def servegen() -> tuple[bytes, ...]:
    """Two windows of one client."""
    window = {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{10: 1.0}", "reason_ratio": "{1: 1.0}"}
    return (json.dumps({"0": window, "21600": window}).encode(),)


def _span(number: int, parent: int, tokens: int, code: int = 0) -> dict[str, Any]:
    attributes: list[dict[str, Any]] = [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]
    for name in ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"):
        attributes += [{"key": name, "value": {"intValue": str(tokens)}}] if tokens else []
    return {
        "traceId": "AAAAAAAAAAAAAAAAAAAAAQ==", "spanId": f"AAAAAAAAAA{number}=", "parentSpanId": f"AAAAAAAAAA{parent}=",
        "name": "llm_request", "startTimeUnixNano": str(10**18 + number), "endTimeUnixNano": str(10**18 + 10**9),
        "status": {"code": code}, "attributes": attributes,
    }  # fmt: skip


_OTLP = {"resourceSpans": [{"scopeSpans": [{"spans": [_span(1, 9, 0), _span(2, 1, 7), _span(3, 1, 8, code=2)]}]}]}
