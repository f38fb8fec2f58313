"""The surface on a terminal: every mark is there, nothing is wider than the screen, and a pipe gets plain text."""

import io

import numpy as np
import pytest
from rich.console import Console

from maitre.records import Attainment, Finding, Limits, ServerConfig, SteadyWindow, Study
from maitre.report import print_study
from maitre.search import recommend

SERVER = ServerConfig(
    model="Qwen/Qwen2.5-14B-Instruct-of-a-long-name", max_model_len=8192, max_num_seqs=64, max_num_batched_tokens=4096,
    gpu_memory_utilization=0.92, kv_cache_dtype="fp8",
)  # fmt: skip


@pytest.fixture
def make_study(make_trial):
    def make(trials=None, **changes):
        trials = trials or [
            make_trial(64, 4096, 11_000, 0.030),
            make_trial(128, 4096, 15_000, 0.034),
            make_trial(256, 4096, 14_900, 0.080, bound_by="token-budget"),
            make_trial(512, 4096, 12_000, 0.300, 1234, bound_by="kv-blocks"),
            make_trial(128, 16384, 14_800, 0.090, bound_by="requests"),
        ]
        answer = recommend(trials, trials[0].cell, np.zeros((10, len(trials))), epsilon=0.02, delta=0.05)
        facts = {
            "maitre_version": "0",
            "engine": "simulated",
            "server": SERVER,
            "gpu": "NVIDIA H200",
            "workload_name": "chat",
            "workload_source": "examples/chat.csv: request table, lengths in prompt_tokens and output_tokens",
            "num_requests": 4096,
            "total_tokens": 3_909_577,
            "calibration": "measured on NVIDIA H200 with Qwen/Qwen2.5-14B (±3 % on a cell's time at 95 %): 46 cells",
            "cells": trials,
            "recommended": answer.recommended,
            "recommendation": answer,
        }
        return Study(**facts | changes)

    return make


def shown(study, width=80, **options):
    stream = io.StringIO()
    print_study(study, Console(file=stream, width=width, **options))
    return stream.getvalue()


def matrix(text):
    """The cells of the matrix by (token budget, slots), as they are written."""
    lines = text.splitlines()
    header = next(i for i, line in enumerate(lines) if line.split() and line.split()[0] == "64")
    slots = lines[header].split()
    rows = {}
    for line in lines[header + 1 :]:
        budget, *cells = line.replace("≈ ", "≈").replace("! ", "!").replace("★ ", "★").replace("● ", "●").split()
        if len(cells) != len(slots):
            break
        rows |= {(budget, slot): cell for slot, cell in zip(slots, cells, strict=True)}
    return rows


def test_the_matrix_marks_every_kind_of_cell(make_study):
    cells = matrix(shown(make_study(), width=120))
    assert cells["4,096", "64"] == "●11,000s"
    assert cells["4,096", "128"] == "★≈15,000s"
    assert cells["4,096", "256"] == "≈14,900t"
    assert cells["4,096", "512"] == "!12,000k"
    assert cells["16,384", "128"] == "≈14,800r"
    assert cells["16,384", "512"] == "·"


def test_the_marks_and_letters_are_explained(make_study):
    text = shown(make_study(), width=120)
    assert "★ recommended   ● present   ≈ within 2% of the best   ! preempts" in text
    assert "s slots, t token budget, k KV blocks, r too few requests" in text


def test_a_pipe_gets_no_escape_codes_and_no_color_no_colours(make_study, monkeypatch):
    assert "\x1b" not in shown(make_study())
    monkeypatch.setenv("NO_COLOR", "1")
    plain_terminal = shown(make_study(), force_terminal=True)
    assert "\x1b[38" not in plain_terminal
    assert "\x1b[48" not in plain_terminal


def test_a_terminal_gets_colour(make_study, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in shown(make_study(), force_terminal=True, color_system="truecolor")


STUDIES = {
    "plain": {},
    "infeasible": {"infeasible": {"1024x65536": "one request of max_model_len 8,192 needs 1.50 GiB of KV cache"}},
    "limits": {"limits": Limits(compute_tokens_per_s=34_401, overlap_tokens_per_s=30_000, sequential_tokens_per_s=2e4)},
    "note": {"findings": (Finding(code="few-requests", message="so few requests that " * 5, remedy="take more"),)},
    "open-loop": {"open_loop": True},
}


@pytest.mark.parametrize("changes", STUDIES.values(), ids=STUDIES)
def test_no_line_but_the_command_is_wider_than_the_screen(make_study, changes):
    for line in shown(make_study(**changes), width=80).splitlines():
        assert len(line) <= 80 or line.startswith("vllm serve ")


def test_latencies_of_minutes_fit_three_columns(make_study, make_trial):
    trials = [make_trial(64, 4096, 900, 300.5), make_trial(128, 4096, 1490, 130.0), make_trial(256, 4096, 1500, 290.0)]
    text = shown(make_study(trials), width=80)
    ttft = next(line for line in text.splitlines() if line.startswith("TTFT"))
    assert ttft.count(" / ") == 6


def test_the_command_line_is_whole_on_one_line(make_study):
    text = shown(make_study(), width=40)
    command = next(line for line in text.splitlines() if line.startswith("vllm serve "))
    assert command == (
        "vllm serve Qwen/Qwen2.5-14B-Instruct-of-a-long-name --kv-cache-dtype fp8 --gpu-memory-utilization 0.92 "
        "--max-model-len 8192 --max-num-seqs 128 --max-num-batched-tokens 4096"
    )


def test_a_recording_has_no_command_line(make_study):
    assert "vllm serve" not in shown(make_study(engine="recorded:r.json"))


def test_cells_that_cannot_serve_are_explained(make_study):
    text = shown(make_study(infeasible={"1024x65536": "no room for a KV cache"}))
    assert "1024x65536 cannot serve: no room for a KV cache" in text


def test_the_cells_that_matter_have_a_column_of_figures(make_study):
    text = shown(make_study(), width=120)
    assert "128 × 4,096" in text
    assert "recommended, fastest" in text
    assert "present" in text
    for label in ("useful tokens/s", "TTFT p50", "ITL p50", "longest ITL", "preemptions", "KV usage", "bound by slots"):
        assert label in text


def row_of(text, label):
    return next(line.split(label)[1].split() for line in text.splitlines() if line.strip().startswith(label))


def test_the_steady_throughput_comes_with_its_interval_where_there_is_one(make_study, make_trial):
    def window(low, high):
        return SteadyWindow(
            rule="r", begin_s=1, end_s=9, total_tokens_per_s=1600, total_tokens_per_s_low=low,
            total_tokens_per_s_high=high, num_batches=8, lag1_autocorrelation=0.0,
        )  # fmt: skip

    without = make_study([make_trial(64, 4096, 1000), make_trial(128, 4096, 1500)])
    assert "while steady" not in shown(without)
    known = make_trial(128, 4096, 1500, steady=window(1584, 1616))
    short = make_trial(64, 4096, 1000, steady=window(None, None))
    assert row_of(shown(make_study([short, known])), "while steady") == ["1,600", "±1.0%", "1,600"]
    assert row_of(shown(make_study([make_trial(64, 4096, 1000), known])), "while steady") == ["1,600", "±1.0%", "none"]


def test_goodput_is_shown_if_there_are_targets(make_study, make_trial):
    assert "goodput" not in shown(make_study([make_trial(128, 4096, 1500)]))
    attainment = Attainment(
        met=False, num_attaining=969, share=0.969, share_low=0.96, share_high=0.98, goodput_rps=12.344, by_target=()
    )
    text = shown(make_study([make_trial(128, 4096, 1500, attainment=attainment)]))
    assert row_of(text, "within targets") == ["96.9%"]
    assert row_of(text, "goodput requests/s") == ["12.34"]


def test_where_more_slots_preempt_and_lose_is_said(make_study, make_trial):
    text = " ".join(shown(make_study()).split())
    assert "preemption cliff: at 4,096 tokens, 512 slots preempt 1,234 times and lose 20%" in text
    few = {"seqs": 0.995, "token-budget": 0.0, "kv-blocks": 0.005, "requests": 0.0}
    harmless = make_study([make_trial(64, 4096, 1000), make_trial(128, 4096, 900, 0.05, 7, bound_share=few)])
    assert "cliff" not in shown(harmless)
    calm = make_study([make_trial(64, 4096, 1000), make_trial(128, 4096, 800)])
    assert "cliff" not in shown(calm)


def test_the_gain_comes_with_its_interval_and_its_probability(make_study):
    text = " ".join(shown(make_study()).split())
    assert "against 64x4096: throughput +36.4 % (+36.4 to +36.4 %)" in text
    assert "within the margin of the best with probability 100%" in text
    assert "--max-num-seqs 128 --max-num-batched-tokens 4096" in text


def test_nothing_to_gain_says_keep_and_names_the_present_dials(make_study, make_trial):
    text = shown(make_study([make_trial(128, 4096, 1500), make_trial(64, 4096, 1000)]))
    assert "Keep 128x4096" in text
    assert "against" not in text
    assert "--max-num-seqs 128 --max-num-batched-tokens 4096" in text


def test_one_cell_is_a_surface_too(make_study, make_trial):
    assert "Keep 128x4096" in shown(make_study([make_trial(128, 4096, 1500)]))


def test_outputs_of_one_token_have_no_inter_token_latency(make_study, make_trial):
    assert "none" in shown(make_study([make_trial(128, 4096, 1500, itl_s=None)]))
