"""Start vLLM for a list of limits and keep what it says about its memory.

Runs where vLLM is installed (0.26.0 tried) with random weights: a model directory needs only its `config.json`.
Each start is a fresh process that exits once vLLM is ready. The results are written after every start.

    python startup_memory.py startup_memory.json qwen2.5-14b:512:8192 qwen2.5-14b:32:8192 qwen2.5-7b:1024:8192

A start is MODEL_DIRECTORY:MAX_NUM_SEQS:MAX_NUM_BATCHED_TOKENS.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

READY = "startup_memory ready "
MEMORY_LINE = re.compile(r"\bmemory\b|KV cache|GiB|[Gg]raph captur|init engine|torch\.compile took")
PREFIX = re.compile(r"^(\([^)]*\) )*[A-Z]+ \d\d-\d\d [\d:.]+ \[[^\]]*\] ")
PATTERNS = {  # a value of the row, and the text that ends or starts at it
    "device_free_gib": r"Free memory on device \(([\d.]+)/",
    "device_total_gib": r"Free memory on device \([\d.]+/([\d.]+) GiB\)",
    "requested_gib": r"Desired GPU memory utilization is \([\d.]+, ([\d.]+) GiB\)",
    "weights_gib": r"Actual usage is ([\d.]+) GiB for weight",
    "peak_activation_gib": r"([\d.]+) GiB for peak activation",
    "non_torch_gib": r"([\d.]+) GiB for non-torch memory",
    "cuda_graphs_gib": r"([\d.]+) GiB for CUDAGraph memory",
    "estimated_cuda_graphs_gib": r"Estimated CUDA graph memory: ([\d.]+) GiB",
    "graph_capture_s": r"Graph capturing finished in ([\d.]+) secs",
    "available_kv_gib": r"Available KV cache memory: ([\d.]+) GiB",
    "kv_cache_tokens": r"GPU KV cache size: ([\d,]+) tokens",
    "model_loading_gib": r"Model loading took ([\d.]+) GiB",
    "model_loading_s": r"Model loading took [\d.]+ GiB(?: memory)? and ([\d.]+) seconds",
    "compile_s": r"torch\.compile took ([\d.]+) s",
    "init_engine_s": r"init engine .* took ([\d.]+) s",
}


def start_engine(model: str, max_num_seqs: int, max_num_batched_tokens: int, options: argparse.Namespace) -> None:
    """Start one engine in this process and print what the log leaves out."""
    from vllm import LLM  # noqa: PLC0415  only the child needs it

    llm = LLM(
        model,
        skip_tokenizer_init=True,
        load_format="dummy",
        max_model_len=options.max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        gpu_memory_utilization=options.gpu_memory_utilization,
        enable_prefix_caching=False,
        enforce_eager=options.enforce_eager,
    )
    cache, graphs = llm.llm_engine.vllm_config.cache_config, llm.llm_engine.vllm_config.compilation_config
    ready = {
        "num_gpu_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "cudagraph_mode": graphs.cudagraph_mode.name,
        "num_cudagraph_sizes": len(graphs.cudagraph_capture_sizes or []),
        "max_cudagraph_capture_size": graphs.max_cudagraph_capture_size,
    }
    print(f"\n{READY}{json.dumps(ready)}", flush=True)
    os._exit(0)  # nothing to shut down gracefully, and tearing down takes seconds


def parse_log(log: str) -> dict[str, Any]:
    """The memory values and lines of one start's log."""
    lines = [PREFIX.sub("", line) for line in log.splitlines() if MEMORY_LINE.search(line) and READY not in line]
    text = "\n".join(lines)
    values = {name: match[1].replace(",", "") for name, p in PATTERNS.items() if (match := re.search(p, text))}
    row: dict[str, Any] = {name: float(value) for name, value in values.items()}
    if match := re.search(rf"^{READY}(.*)$", log, re.MULTILINE):
        row |= json.loads(match[1])
    return row | {"lines": list(dict.fromkeys(lines))}


def run_start(start: str) -> dict[str, Any]:
    """Start vLLM in a fresh process and parse what it logs."""
    environment = os.environ | {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    began = time.perf_counter()
    child = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--only", start],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    model, max_num_seqs, max_num_batched_tokens = start.split(":")
    limits = {"max_num_seqs": int(max_num_seqs), "max_num_batched_tokens": int(max_num_batched_tokens)}
    took = {"exit_code": child.returncode, "start_s": round(time.perf_counter() - began, 1)}
    if child.returncode:
        took["error"] = "\n".join(child.stdout.splitlines()[-15:])
    return {"model": Path(model).name} | limits | took | parse_log(child.stdout)


def main() -> None:
    """Make every start, or the one that `--only` names, in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("starts", nargs="+", metavar="MODEL:S:T")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        model, max_num_seqs, max_num_batched_tokens = options.only.split(":")
        start_engine(model, int(max_num_seqs), int(max_num_batched_tokens), options)
    server = {"max_model_len": options.max_model_len, "gpu_memory_utilization": options.gpu_memory_utilization}
    rows: list[dict[str, Any]] = []
    for start in options.starts:
        rows.append(run_start(start))
        options.out.write_text(json.dumps({"server": server, "starts": rows}, indent=1) + "\n")
        print({name: value for name, value in rows[-1].items() if name != "lines"}, flush=True)


if __name__ == "__main__":
    main()
