"""What a column, a JSON key or a flag is called, and what it means: the one list of spellings for every tool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from maitre.bench_results.records import Setting

# Compared in lower case, `/` read as "per", other separators dropped. Sources: `vllm bench serve|throughput` JSON
# (0.5 to 0.33), `vllm bench sweep` summary.csv, the tables of public write-ups (docs/import.md).
_FIELDS = {
    "max_num_seqs": "maxnumseqs mns maxseqs numseqs maxnumseq",
    "max_num_batched_tokens": "maxnumbatchedtokens mnbt mbt maxbatchedtokens numbatchedtokens tokenbudget",
    "concurrency": "concurrency c maxconcurrency clientconcurrency clients numclients streams users"
    " maximumrequestconcurrency requestconcurrency concurrentrequests",
    "request_rate": "requestrate rate qps offeredrate offeredrps requestraterps rateoffered",
    "peak_concurrency": "peakconcurrency maxconcurrentrequests peakconcurrentrequests maxinflight",
    "num_requests": "numrequests numprompts requests nrequests prompts",
    "successful": "successful completed successfulrequests numsuccessful ok",
    "failed": "failed failedrequests numfailed errors errored errorrequests",
    "duration_s": "duration durations elapsedtime elapsedtimes benchmarkdurations benchmarkduration totaltime",
    "requests_per_s": "requestspers reqpers requestspersec reqpersec requestspersecond requestthroughput rps reqs"
    " requestthroughputreqpers throughputreqpers throughputrps throughputrequestspers throughputrequestspersecond",
    "total_tokens_per_s": "totaltokenspers totaltokpers tottokpers totaltokenthroughput totaltokenspersecond totaltps"
    " totaltokenthroughputtokpers totalthroughput totalthroughputtokpers totaltokenspersec",
    "output_tokens_per_s": "outputtokenspers outputtokpers outtokpers outputthroughput outputtokenthroughput outputtps"
    " outputtokenspersecond outputtokenthroughputtokpers generatedtokenspers generationtokpers outtps"
    " generationtokenspers outputthroughputtokpers outputtokenspersec",
    "tokens_per_s": "tokenspers tokpers tokenspersecond throughputtokpers throughputtokenspers tps aggtokpers toks"
    " throughputtokenspersecond tokenspersec aggregatetokpers",
    "peak_output_tokens_per_s": "maxoutputtokenspers peakoutputtokenspers peakoutputtokenthroughputtokpers",
    "total_input_tokens": "totalinputtokens totalprompttokens",
    "total_output_tokens": "totaloutputtokens totalgeneratedtokens",
    "label": "label name exp experiment run config configuration profile scenario",
}
_SETTINGS = {
    "tensor_parallel_size": "tensorparallelsize tp tpsize",
    "pipeline_parallel_size": "pipelineparallelsize pp ppsize",
    "data_parallel_size": "dataparallelsize dp dpsize",
    "num_gpus": "numgpus gpus gpucount",
    "gpu": "gpu gpuname gputype accelerator hardware platform",
    "model": "model modelid modelname modelgpus modelgpu",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kvcachedtype",
    "gpu_memory_utilization": "gpumemoryutilization util gpuutil gpumemutil",
    "max_model_len": "maxmodellen",
    "input_len": "inputlen isl randominputlen promptlen inputtokens",
    "output_len": "outputlen osl randomoutputlen outputtokens",
    "dataset": "dataset datasetname",
    "vllm_version": "vllmversion",
    "performance_mode": "performancemode perfmode",
    "enable_prefix_caching": "enableprefixcaching prefixcaching apc",
    "enable_chunked_prefill": "enablechunkedprefill chunkedprefill",
    "enforce_eager": "enforceeager eager",
    "async_scheduling": "asyncscheduling",
    "block_size": "blocksize",
    "long_prefill_token_threshold": "longprefilltokenthreshold",
    "num_scheduler_steps": "numschedulersteps",
    "watermark": "watermark kvwatermark",
}
_FIELD_OF = {spelling: field for field, spellings in _FIELDS.items() for spelling in spellings.split()}
_SETTING_OF = {spelling: setting for setting, spellings in _SETTINGS.items() for spelling in spellings.split()}

_LARGEST = 1e15
_UNSET = {"", "-", "–", "default", "none", "null", "nan", "n/a", "not seen"}
_LATENCY_NAMES = (
    ("ttft", r"ttft|time to first token"),
    ("tpot", r"tpot|time per output token"),
    ("itl", r"itl|inter token latency"),
    ("e2el", r"e2el?|end to end(?: latency)?|(?:request )?latency"),
)
_STATISTIC = re.compile(r"\b(mean|avg|average|median|p50|p90|p95|p99|max|std)\b")
_MS = {"s": 1e3, "sec": 1e3, "seconds": 1e3, "ms": 1.0, "us": 1e-3}
_UNIT = re.compile(r"[\s_(\[]+(ms|us|s|sec|seconds)[)\]]?$", re.IGNORECASE)


def spell(name: str) -> str:
    """A name in lower case without separators: `Out tok/s` is `outtokpers`."""
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("/", "per"))


def field_of(name: str) -> str | None:
    """The field of `Run` that a column or key means; None when it means none."""
    return _FIELD_OF.get(spell(name))


def is_known_setting(name: str) -> bool:
    """Whether a setting's name is one of vLLM's or of this list, not a column of the user's own."""
    return name in _SETTINGS


def setting_of(name: str) -> str | None:
    """The further setting that a column, key or flag means, by vLLM's name."""
    return _SETTING_OF.get(spell(name))


def latency_of(name: str) -> tuple[str, float | None] | None:
    """The latency that a column means, and its unit.

    Returns:
        vLLM's name such as `mean_ttft_ms`, and the factor to milliseconds: None where the column has no unit.
    """
    words = re.sub(r"[\s_\-()\[\]]+", " ", name.lower()).strip()
    statistic = _STATISTIC.search(words)
    metric = next((short for short, pattern in _LATENCY_NAMES if re.search(rf"\b(?:{pattern})\b", words)), None)
    if statistic is None or metric is None:
        return None
    which = {"avg": "mean", "average": "mean", "p50": "median"}.get(statistic[1], statistic[1])
    unit = _UNIT.search(name.strip())
    return f"{which}_{metric}_ms", _MS[unit[1].lower()] if unit else None


def number(value: Any) -> float | None:
    """A number as people and tools write it (`1,234.5`, `**7.1**`, `~31`); None for what no figure of a run can be."""
    if isinstance(value, str):
        text = value.strip().strip("*`~ ").replace(",", "").removesuffix("x").removesuffix("%")
        try:
            value = float(text)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:  # NaN, too
        return None
    return value if abs(value) > 1 / _LARGEST else 0.0


def whole(value: Any) -> int | None:
    """A whole number; `8k` is 8,000 and `8K` 8,192, as vLLM reads them."""
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+)([kK])", value.strip())):
        return int(match[1]) * (1000 if match[2] == "k" else 1024)
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def count(value: Any) -> int | None:
    """A number of things: whole and not negative."""
    found = whole(value)
    return found if found is not None and found >= 0 else None


def setting(value: Any) -> Setting | None:
    """The value of a setting: a number where it is one, else text; None where it says `default` or nothing."""
    if isinstance(value, bool):
        return value
    if value is None or isinstance(value, dict | list) or str(value).strip().lower() in _UNSET:
        return None
    found = whole(value)
    return found if found is not None else (number(value) or str(value).strip())


def nested(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object below a key; an empty one where there is none."""
    value = record.get(key)
    return value if isinstance(value, dict) else {}
