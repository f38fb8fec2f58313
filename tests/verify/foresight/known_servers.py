"""Servers whose truth is known, with steps longer and lengths less independent than anybody assumes."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from maitre.calibration import calibration_for
from maitre.gpus import find_gpu
from maitre.kv_budget import kv_bytes_per_token
from maitre.models import load_model
from maitre.records import Cell, ServerConfig, Workload
from maitre.verify.foresight.steady_traffic import KnownServer

spec = importlib.util.spec_from_file_location("true_servers", Path(__file__).parents[3] / "benchmarks/true_servers.py")
true_servers = importlib.util.module_from_spec(spec)
sys.modules["true_servers"] = true_servers  # its dataclasses look themselves up there
spec.loader.exec_module(true_servers)
TrueServer, truth, observe = true_servers.TrueServer, true_servers.truth, true_servers.observe
bucketed = true_servers.bucketed


def cell(seqs, tokens=4096):
    return Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens)


def known_server(present, num_gpu_blocks=20_000, model="qwen2.5-7b", gpu="L40S"):
    server = ServerConfig(model=model, max_model_len=32_768, enable_prefix_caching=False, **present.model_dump())
    per_token = kv_bytes_per_token(load_model(model), "auto", 1, "auto")
    calibration = calibration_for(load_model(model), find_gpu(gpu), server, per_token)
    return KnownServer(server, calibration, lambda _: num_gpu_blocks)


def a_server(present, *, num_gpu_blocks=20_000, load=None, prompt=600, output=150, slower=1.1, num_requests=1500):
    """Lengths that go together, steps that are longer than the calibration says; clients that wait without a load."""
    generator = np.random.default_rng(7)
    normal = generator.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], num_requests)
    lengths = [np.maximum(1, np.rint(m * np.exp(0.6 * z))) for m, z in zip((prompt, output), normal.T, strict=True)]
    requests = Workload(name="true", source="drawn", prompt_tokens=lengths[0], output_tokens=lengths[1])
    known = known_server(present, num_gpu_blocks)
    theta = known.calibration.step_time.coefficients * slower * np.array([1, 1, 1.2, 1, 1.1, 1.1, 1])
    full = TrueServer(known, theta, requests, 2 * present.max_num_seqs)
    if load is None:
        return full
    seen = truth(full, present)
    rate_rps = load * seen.finished.sum() / (seen.end_s - seen.begin_s)
    arrival_s = np.cumsum(generator.exponential(1 / rate_rps, num_requests))
    return replace(full, requests=requests.model_copy(update={"arrival_s": arrival_s}), num_clients=None)
