"""The next steps of a dial, and which of them is recommended."""

import importlib.util
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from maitre.records import Cell
from maitre.verify.foresight.credibility import Credibility
from maitre.verify.foresight.expectation import Expectation, Expectations, expect
from maitre.verify.foresight.next_cells import propose_cells, smallest_that_helps
from maitre.verify.foresight.settled import CellFigures

spec = importlib.util.spec_from_file_location("known_servers", Path(__file__).with_name("known_servers.py"))
known_servers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(known_servers)
a_server, observe = known_servers.a_server, known_servers.observe

TURNS = ("raise-max-num-seqs", "lower-max-num-seqs", "raise-token-budget", "lower-token-budget")
BELIEVED = Credibility(scale=1.0, is_anchored=True, checks=(), doubt="")


def cell(seqs, tokens=8192):
    return Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens)


def dials(cells):
    return [(one.max_num_seqs, one.max_num_batched_tokens) for one in cells]


def figures(**changes):
    facts = {
        "keeps_up": True, "capacity_rps": 10.0, "requests_per_s": 5.0, "output_tokens_per_s": 1000.0, "running": 30.0,
        "waiting": 0.0, "kv_usage": 0.5, "preemptions_per_min": 0.0, "itl_mean_s": 0.03, "itl_p50_s": 0.03,
        "itl_p99_s": 0.1, "ttft_mean_s": 0.2, "ttft_p50_s": 0.2, "ttft_p95_s": 0.5,
    }  # fmt: skip
    return CellFigures(**facts | changes)


def expectations(now, **candidates):
    """Candidates by max_num_seqs, such as s64=figures(), at a budget of 8192; t2048 for a budget at 32 slots."""
    ones = []
    for name, found in candidates.items():
        at = cell(int(name[1:])) if name[0] == "s" else cell(32, int(name[1:]))
        ones.append(Expectation(**at.model_dump(), figures=found, keeps_up_surely=True, changes={}))
    return Expectations(
        present=cell(32), figures=now, candidates=tuple(ones), infeasible={}, credibility=BELIEVED, assumptions=()
    )


# steps


def test_a_step_doubles_or_halves_a_dial():
    assert dials(propose_cells(cell(32), "raise-max-num-seqs")) == [(64, 8192), (128, 8192)]
    assert dials(propose_cells(cell(32), "lower-max-num-seqs")) == [(16, 8192), (8, 8192)]
    assert dials(propose_cells(cell(32), "raise-token-budget")) == [(32, 16384), (32, 32768)]
    assert dials(propose_cells(cell(32), "lower-token-budget")) == [(32, 4096), (32, 2048), (32, 1024)]


def test_slots_also_go_to_what_the_pool_holds():
    more = propose_cells(cell(32), "raise-max-num-seqs", kv_tokens=100_000, request_tokens=1100)
    assert dials(more) == [(64, 8192), (88, 8192), (128, 8192)]  # 90 requests, in whole CUDA graphs
    fewer = propose_cells(cell(256), "lower-max-num-seqs", kv_tokens=100_000, request_tokens=5500)
    assert dials(fewer) == [(128, 8192), (64, 8192), (16, 8192)]
    assert dials(propose_cells(cell(8), "lower-max-num-seqs", kv_tokens=4000, request_tokens=1000)) == [
        (4, 8192),
        (2, 8192),
    ]


def test_a_pool_that_holds_many_times_more_gets_a_step_between():
    more = propose_cells(cell(8), "raise-max-num-seqs", kv_tokens=500_000, request_tokens=1000)
    assert dials(more) == [(16, 8192), (32, 8192), (64, 8192), (496, 8192)]


def test_a_pool_that_holds_less_is_no_step_up():
    assert dials(propose_cells(cell(32), "raise-max-num-seqs", kv_tokens=10_000, request_tokens=1000)) == [
        (64, 8192),
        (128, 8192),
    ]


def test_the_token_budget_goes_up_with_the_slots():
    assert dials(propose_cells(cell(512, 512), "raise-max-num-seqs")) == [(1024, 1024)]


def test_the_ends_of_the_dials_are_no_steps():
    assert propose_cells(cell(1024), "raise-max-num-seqs") == []
    assert propose_cells(cell(1), "lower-max-num-seqs") == []
    assert propose_cells(cell(32, 65_536), "raise-token-budget") == []
    assert propose_cells(cell(512, 512), "lower-token-budget") == []


@given(
    seqs=st.integers(1, 4096), more_tokens=st.integers(0, 100_000), turn=st.sampled_from(TURNS),
    kv_tokens=st.none() | st.integers(16, 10_000_000), request_tokens=st.floats(1, 100_000),
)  # fmt: skip
def test_vllm_accepts_every_step_and_each_goes_the_way_it_should(seqs, more_tokens, turn, kv_tokens, request_tokens):
    present = cell(seqs, seqs + more_tokens)
    steps = propose_cells(present, turn, kv_tokens=kv_tokens, request_tokens=request_tokens)
    assert len(set(steps)) == len(steps)
    assert present not in steps
    for one in steps:
        assert one.max_num_batched_tokens >= one.max_num_seqs
        if turn.endswith("max-num-seqs"):
            assert (one.max_num_seqs > seqs) == turn.startswith("raise")
            assert one.max_num_batched_tokens >= present.max_num_batched_tokens
        else:
            assert one.max_num_seqs == seqs
            assert (one.max_num_batched_tokens > present.max_num_batched_tokens) == turn.startswith("raise")


# which of them


def test_the_smallest_step_after_which_nobody_waits():
    queue = figures(waiting=20.0, ttft_p95_s=8.0)
    found = expectations(queue, s64=figures(waiting=0.4), s128=figures(waiting=0.0))
    assert smallest_that_helps(found, "raise-max-num-seqs").cell == cell(64)
    found = expectations(queue, s64=figures(waiting=6.0, ttft_p95_s=3.0), s128=figures(waiting=0.0))
    assert smallest_that_helps(found, "raise-max-num-seqs").cell == cell(128)


def test_with_a_queue_that_always_is_there_throughput_decides():
    now = figures(keeps_up=False, waiting=None, ttft_p95_s=None, output_tokens_per_s=1000.0)
    more = {"keeps_up": False, "waiting": None, "ttft_p95_s": None, "running": 60.0}
    twice, four_times = (figures(output_tokens_per_s=rate, **more) for rate in (1400.0, 1410.0))
    found = expectations(now, s64=twice, s128=four_times)
    assert smallest_that_helps(found, "raise-max-num-seqs").cell == cell(64)
    found = expectations(now, s64=figures(output_tokens_per_s=1005.0, **more))
    assert smallest_that_helps(found, "raise-max-num-seqs") is None


def test_fewer_slots_must_not_cost_throughput():
    now = figures(preemptions_per_min=30.0)
    found = expectations(now, s16=figures(preemptions_per_min=9.0), s8=figures(preemptions_per_min=1.0))
    assert smallest_that_helps(found, "lower-max-num-seqs").cell == cell(8)
    found = expectations(now, s8=figures(preemptions_per_min=0.0, output_tokens_per_s=900.0))
    assert smallest_that_helps(found, "lower-max-num-seqs") is None
    found = expectations(now, s8=figures(preemptions_per_min=0.0, keeps_up=False, waiting=None))
    assert smallest_that_helps(found, "lower-max-num-seqs") is None


def test_the_other_latency_may_not_suffer():
    now = figures(itl_p99_s=0.2)
    found = expectations(now, t4096=figures(itl_p99_s=0.19), t2048=figures(itl_p99_s=0.1))
    assert smallest_that_helps(found, "lower-token-budget").cell == cell(32, 2048)
    found = expectations(now, t2048=figures(itl_p99_s=0.1, ttft_p95_s=1.0))
    assert smallest_that_helps(found, "lower-token-budget") is None
    now = figures(ttft_p95_s=2.0)
    found = expectations(now, t16384=figures(ttft_p95_s=1.0, itl_p99_s=0.12))
    assert smallest_that_helps(found, "raise-token-budget").cell == cell(32, 16384)
    found = expectations(now, t16384=figures(ttft_p95_s=1.0, itl_p99_s=0.3))
    assert smallest_that_helps(found, "raise-token-budget") is None


def test_a_simulator_that_is_not_believed_recommends_nothing():
    found = expectations(None).model_copy(update={"figures": None})
    assert smallest_that_helps(found, "raise-max-num-seqs") is None


def test_from_the_metrics_to_the_step():
    server = a_server(known_servers.cell(16), load=0.93)
    traffic, observed = observe(server)
    found = expect(traffic, server.known, observed, propose_cells(server.known.server.cell, "raise-max-num-seqs"))
    best = smallest_that_helps(found, "raise-max-num-seqs")
    assert best is not None
    assert best.max_num_seqs == 32
