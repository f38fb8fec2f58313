"""Record what vLLM's scheduler does, step by step, and when each request is served.

Runs where vLLM is installed (0.26.0 and 0.32.0 tried), with random weights: a model directory is just a `config.json`.
One engine serves every recording of a call. Between cells, when nothing runs, the two limits are changed live.

    python record_steps.py qwen2.5-7b recordings --record batch lognormal:500:0.8:250:0.8 256 32x2048,128x8192 0 \
        --record open-loop lognormal:500:0.8:250:0.8 400 128x2048 60%

Each `--record` writes `NAME.json` and `NAME.npz`. Its five values:

NAME      of the two files
WORKLOAD  fixed:IN:OUT, lognormal:IN_MEDIAN:SIGMA:OUT_MEDIAN:SIGMA (cut at 4 medians), or
          shared-prefix:GROUPS:PREFIX_MIN:PREFIX_MAX:OWN_MEDIAN:OUT_MEDIAN:SIGMA (tokens; prefixes are whole blocks)
REQUESTS  how many
CELLS     max_num_seqs x max_num_batched_tokens, comma-separated
RATE      0: all requests at t=0; 12.5: Poisson arrivals a second; 60%: of what the recording's first cell sustained
          in an earlier recording of the same call
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import math
import os
import time
from collections import defaultdict
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from vllm import LLM, SamplingParams
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

STEP_COLUMNS = (  # noqa: SIM905
    "schedule_start_s schedule_end_s num_decodes decode_context_tokens num_prefills prefill_tokens "
    "prefill_attention_pairs num_preemptions num_running num_waiting num_free_blocks output_start_s output_end_s"
).split()
TIME_COLUMNS = [i for i, name in enumerate(STEP_COLUMNS) if name.endswith("_s")]
MODEL_KEYS = (  # noqa: SIM905
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size vocab_size dtype "
    "tie_word_embeddings"
).split()
PREFIX_BLOCK_TOKENS = 16


@dataclass
class RequestTimes:
    """What happened to one request; the fields are the `request_columns` of a recording."""

    arrival_s: float
    first_scheduled_s: float = math.nan
    first_token_s: float = math.nan
    last_token_s: float = math.nan
    num_preemptions: int = 0
    num_cached_tokens: int = 0


class RecordingScheduler(AsyncScheduler):
    """vLLM's own scheduler, with a row for every step and an entry for every request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.restart(self.max_num_running_reqs, self.max_num_scheduled_tokens)

    def restart(self, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        """Forget what was recorded and set both limits; only when nothing runs, and never above the start's limits."""
        self.rows: list[tuple[float, ...]] = []
        self.in_flight: dict[int, tuple[float, ...]] = {}
        self.times: dict[str, RequestTimes] = {}
        self.num_preemptions = 0
        self.max_num_running_reqs, self.max_num_scheduled_tokens = max_num_seqs, max_num_batched_tokens
        if hasattr(self, "max_num_active_reqs"):  # 0.31 and later admit by this one
            self.max_num_active_reqs = max_num_seqs

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Note the arrival."""
        self.times[request.request_id] = RequestTimes(time.perf_counter())
        super().add_request(request, *args, **kwargs)

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        self.times[request.request_id].num_preemptions += 1
        self.num_preemptions += 1
        super()._preempt_request(request, *args, **kwargs)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule one step and keep its row until the output arrives."""
        start, preempted_before = time.perf_counter(), self.num_preemptions
        output = super().schedule(*args, **kwargs)
        end = time.perf_counter()
        queues = (len(self.running), len(self.waiting), self.kv_cache_manager.block_pool.get_num_free_blocks())
        work = self._work(output.num_scheduled_tokens, start)
        if output.num_scheduled_tokens:
            self.in_flight[id(output)] = (start, end, *work, self.num_preemptions - preempted_before, *queues)
        return output

    def _work(self, num_scheduled_tokens: dict[str, int], start: float) -> tuple[int, int, int, int, int]:
        """Decodes and their context; prefills, their tokens and their query-key pairs."""
        decodes = context = prefills = prefill_tokens = pairs = 0
        for request_id, n in num_scheduled_tokens.items():
            request, times = self.requests[request_id], self.times[request_id]
            computed = request.num_computed_tokens - n  # vLLM has advanced it already
            if math.isnan(times.first_scheduled_s):
                times.first_scheduled_s, times.num_cached_tokens = start, computed
            if n == 1 and computed >= request.num_prompt_tokens:
                decodes, context = decodes + 1, context + computed + 1
            else:
                prefills, prefill_tokens = prefills + 1, prefill_tokens + n
                pairs += n * computed + n * (n + 1) // 2
        return decodes, context, prefills, prefill_tokens, pairs

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply one step's output, complete its row and note the tokens' times."""
        start = time.perf_counter()
        result = super().update_from_output(scheduler_output, *args, **kwargs)
        end = time.perf_counter()
        if row := self.in_flight.pop(id(scheduler_output), None):
            self.rows.append((*row, start, end))
        for output in itertools.chain.from_iterable(outputs.outputs for outputs in result.values()):
            if output.new_token_ids:
                times = self.times[output.request_id]
                times.first_token_s = end if math.isnan(times.first_token_s) else times.first_token_s
                times.last_token_s = end
        return result

    def recorded(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps and requests, with times in seconds since the first step's schedule()."""
        steps, requests = np.array(self.rows), np.array([astuple(times) for times in self.times.values()])
        zero = steps[0, 0]
        steps[:, TIME_COLUMNS] -= zero
        requests[:, :4] -= zero
        return steps, requests


@dataclass
class Requests:
    """The requests of a recording, in order of arrival."""

    arrival_s: list[float]
    prompt_tokens: list[int]
    output_tokens: list[int]
    prefix_hashes: list[list[int]] = field(default_factory=list)

    def prompts(self, rng: np.random.Generator, vocab_size: int) -> list[list[int]]:
        """Fresh random token ids; equal hashes get equal chunks."""
        if not self.prefix_hashes:
            return [rng.integers(vocab_size, size=n).tolist() for n in self.prompt_tokens]
        chunks: dict[int, list[int]] = defaultdict(lambda: rng.integers(vocab_size, size=PREFIX_BLOCK_TOKENS).tolist())
        chains = [[token for h in hashes for token in chunks[h]] for hashes in self.prefix_hashes]
        return [chain[:n] for chain, n in zip(chains, self.prompt_tokens, strict=True)]

    def as_json(self) -> dict[str, Any]:
        """The lists; prefix hashes only where there are any."""
        lists = {name: values for name, values in asdict(self).items() if values}
        return lists | ({"prefix_block_tokens": PREFIX_BLOCK_TOKENS} if self.prefix_hashes else {})


def lognormal(rng: np.random.Generator, median: float, sigma: float, count: int) -> list[int]:
    """Token counts around a median, cut at four times it."""
    return np.clip(rng.lognormal(np.log(median), sigma, count), 1, 4 * median).astype(int).tolist()


def share_prefixes(
    rng: np.random.Generator, prefix_blocks: list[int], own_tokens: list[int]
) -> tuple[list[list[int]], list[int]]:
    """Hash chains and prompt lengths of requests that each extend one of the prefixes."""
    hashes = itertools.count()
    prefixes = [list(itertools.islice(hashes, n)) for n in prefix_blocks]
    group = rng.integers(len(prefixes), size=len(own_tokens))
    tails = [list(itertools.islice(hashes, -(-n // PREFIX_BLOCK_TOKENS))) for n in own_tokens]
    chains = [prefixes[g] + tail for g, tail in zip(group, tails, strict=True)]
    return chains, [len(prefixes[g]) * PREFIX_BLOCK_TOKENS + n for g, n in zip(group, own_tokens, strict=True)]


def make_requests(spec: str, count: int, rate: float, seed: int) -> Requests:
    """Draw the requests of a workload; a rate of 0 means all at t=0."""
    rng = np.random.default_rng(seed)
    gaps = np.random.default_rng([seed, 1]).exponential(1 / rate, count) if rate else np.zeros(count)
    arrival_s = (gaps.cumsum() - gaps[0]).tolist()
    kind, *texts = spec.split(":")
    values = [float(text) for text in texts]
    match kind, values:
        case "fixed", [prompt, output]:
            return Requests(arrival_s, [int(prompt)] * count, [int(output)] * count)
        case "lognormal", [prompt, prompt_sigma, output, output_sigma]:
            prompts = lognormal(rng, prompt, prompt_sigma, count)
            return Requests(arrival_s, prompts, lognormal(rng, output, output_sigma, count))
        case "shared-prefix", [groups, shortest, longest, own, output, sigma]:
            blocks = rng.integers(shortest // PREFIX_BLOCK_TOKENS, longest // PREFIX_BLOCK_TOKENS + 1, int(groups))
            chains, prompts = share_prefixes(rng, blocks.tolist(), lognormal(rng, own, sigma, count))
            return Requests(arrival_s, prompts, lognormal(rng, output, sigma, count), chains)
    raise SystemExit(f"unknown workload {spec}")


def serve(engine: Any, prompts: list[list[int]], requests: Requests) -> float:
    """Add each request at its time, between engine steps, until all are served; return the seconds it took."""
    start, added = time.perf_counter(), 0
    while added < len(prompts) or engine.has_unfinished_requests():
        while added < len(prompts) and requests.arrival_s[added] <= time.perf_counter() - start:
            length = {"max_tokens": requests.output_tokens[added], "ignore_eos": True}
            params = SamplingParams(temperature=0, detokenize=False, **length)
            engine.add_request(str(added), {"prompt_token_ids": prompts[added]}, params)
            added += 1
        if engine.has_unfinished_requests():
            engine.step()
        else:
            time.sleep(max(0.0, start + requests.arrival_s[added] - time.perf_counter()))
    return time.perf_counter() - start


def sustained_rate(steps: np.ndarray, requests: Requests) -> float:
    """Requests a second while some were waiting: decoded tokens of that time over the mean output."""
    saturated = steps[steps[:, STEP_COLUMNS.index("num_waiting")] > 0]
    tokens = saturated[:, STEP_COLUMNS.index("num_decodes")].sum()
    return float(tokens / saturated[-1, -1] / np.mean(requests.output_tokens))


@dataclass
class Recorder:
    """One loaded engine and what every recording says about it."""

    llm: LLM
    seed: int
    about: dict[str, Any]
    sustained: dict[str, float] = field(default_factory=dict)
    num_runs: int = 0

    def record(self, path: Path, spec: str, count: int, cells: list[str], rate: str) -> None:
        """Serve one workload in every cell; both files are rewritten after each."""
        per_s = float(rate.rstrip("%")) * (self.sustained[cells[0]] / 100 if rate.endswith("%") else 1)
        requests = make_requests(spec, count, per_s, self.seed)
        workload = {"workload": spec} | ({"arrival_rate_per_s": per_s, "arrival_rate": rate} if per_s else {})
        columns = {"step_columns": STEP_COLUMNS, "request_columns": [f.name for f in fields(RequestTimes)]}
        rows, arrays = [], {}
        for i, cell in enumerate(cells):
            row, steps, times = self.run_cell(cell, cells[:i].count(cell), requests)
            if not per_s and steps[:, STEP_COLUMNS.index("num_waiting")].any():
                self.sustained[cell] = sustained_rate(steps, requests)
            rows.append(row)
            arrays |= {row["steps"]: steps.astype(np.float32), f"{row['steps']}_requests": times.astype(np.float32)}
            content = self.about | workload | {"requests": requests.as_json()} | columns | {"cells": rows}
            Path(f"{path}.json").write_text(json.dumps(content, indent=1) + "\n")
            np.savez_compressed(f"{path}.npz", **arrays)
            print(path.name, row, flush=True)

    def run_cell(self, cell: str, repeat: int, requests: Requests) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
        """Set both limits, serve fresh prompts and sum up; `engine_s` ends with the last step's output."""
        engine, limits = self.llm.llm_engine, [int(limit) for limit in cell.split("x")]
        scheduler = engine.engine_core.engine_core.scheduler
        rng = np.random.default_rng([self.seed, 2, self.num_runs])
        prompts = requests.prompts(rng, self.about["model_config"]["vocab_size"])
        self.num_runs += 1
        self.llm.reset_prefix_cache()
        scheduler.restart(*limits)
        wall_s = serve(engine, prompts, requests)
        steps, times = scheduler.recorded()
        engine_s, output_tokens = float(steps[-1, -1]), sum(requests.output_tokens)
        row = dict(zip(("max_num_seqs", "max_num_batched_tokens"), limits, strict=True)) | {
            "repeat": repeat,
            "steps": f"{limits[0]}_{limits[1]}_{repeat}",
            "num_steps": len(steps),
            "num_preemptions": scheduler.num_preemptions,
            "engine_s": round(engine_s, 4),
            "wall_s": round(wall_s, 4),
            "total_tokens_per_s": round((sum(requests.prompt_tokens) + output_tokens) / engine_s, 2),
            "output_tokens_per_s": round(output_tokens / engine_s, 2),
        }
        return row, steps, times


def describe(llm: LLM, model: Path, server: dict[str, Any]) -> dict[str, Any]:
    """What every recording says about the engine."""
    config, vllm_config = json.loads((model / "config.json").read_text()), llm.llm_engine.vllm_config
    attention = next(iter(vllm_config.compilation_config.static_forward_context.values()))
    return {
        "schema": "maitre-recording-1",
        "note": "one model load; both limits changed live between cells; greedy, ignore_eos",
        "gpu": current_platform.get_device_name(),
        "vllm_version": importlib.metadata.version("vllm"),
        "torch_version": importlib.metadata.version("torch"),
        "attention_backend": attention.get_attn_backend().get_name(),
        "model": f"{model.name} geometry, {config['dtype']}, dummy weights",
        "model_config": {name: config[name] for name in MODEL_KEYS} | {"architecture": config["architectures"][0]},
        "server": server,
        "num_gpu_blocks": vllm_config.cache_config.num_gpu_blocks,
        "block_size": vllm_config.cache_config.block_size,
        "num_gpu_blocks_override": vllm_config.cache_config.num_gpu_blocks_override,
    }


def start(options: argparse.Namespace) -> Recorder:
    """Load the model with the largest limits of all cells."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler must live in this process
    limits = [[int(limit) for limit in cell.split("x")] for record in options.record for cell in record[3].split(",")]
    server = {
        "max_num_seqs": max(max_num_seqs for max_num_seqs, _ in limits),
        "max_num_batched_tokens": max(max_num_batched_tokens for _, max_num_batched_tokens in limits),
        "max_model_len": options.max_model_len,
        "gpu_memory_utilization": 0.9,
        "enable_prefix_caching": options.enable_prefix_caching,
        "async_scheduling": True,
        "tensor_parallel_size": 1,
    }
    extra = {"num_gpu_blocks_override": options.num_gpu_blocks, "enforce_eager": options.enforce_eager, **server}
    began = time.perf_counter()
    llm = LLM(
        str(options.model),
        skip_tokenizer_init=True,
        load_format="dummy",
        scheduler_cls=RecordingScheduler,
        **extra,
    )
    boot_s = round(time.perf_counter() - began, 1)
    return Recorder(llm, options.seed, describe(llm, options.model, server) | {"boot_s": boot_s})


def main() -> None:
    """Load the model once and make every recording."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    values = ("NAME", "WORKLOAD", "REQUESTS", "CELLS", "RATE")
    parser.add_argument("--record", nargs=5, metavar=values, action="append", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--num-gpu-blocks", type=int)
    parser.add_argument("--enable-prefix-caching", action="store_true")
    parser.add_argument("--enforce-eager", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    recorder = start(options)
    for name, spec, count, cells, rate in options.record:
        recorder.record(options.out / name, spec, int(count), cells.split(","), rate)


if __name__ == "__main__":
    main()
