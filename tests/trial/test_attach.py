"""A server that is up, measured as it is, from outside: one cell, new prompts, its counters, and who else was there."""

import importlib.util
from pathlib import Path

import pytest

from maitre.errors import SystemFailure, UsageError
from maitre.records import Cell, Workload
from maitre.trial.attach import AttachEngine, AttachOptions, served_cell
from maitre.trial.engine import TrialFailure
from maitre.trial.probe import Answer, probe

CELL = Cell(max_num_seqs=4, max_num_batched_tokens=64)
RUN = 1_700_000_000


@pytest.fixture(scope="module")
def serving():
    """`with serving(gap_s=…) as server:` runs a server of known behaviour (attached_server.py)."""
    spec = importlib.util.spec_from_file_location("attached_server", Path(__file__).with_name("attached_server.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.serving


@pytest.fixture
def workload():
    return Workload(
        name="w", source="by hand", prompt_tokens=[5, 9, 3, 7, 4, 6], output_tokens=[40, 8, 50, 3, 1, 20],
        arrival_s=[0, 0.01, 0.02, 0.03, 0.04, 0.05],
    )  # fmt: skip


def make_engine(server, workload, **options):
    return AttachEngine(probe(server.url), workload, CELL, AttachOptions(RUN, vocab_size=2048, **options))


def test_a_run_is_told_from_its_streams_and_from_the_servers_counters(serving, workload):
    with serving(gap_s=0.002) as server:
        measurement = make_engine(server, workload).measure(CELL)
    trial = measurement.trial
    assert (trial.engine, trial.cell, trial.num_requests, measurement.steps) == ("attach", CELL, 6, None)
    assert trial.total_tokens_per_s * trial.duration_s == pytest.approx(156)
    assert trial.output_tokens_per_s * trial.duration_s == pytest.approx(122)
    assert 0 < trial.itl_s.max < trial.e2e_s.max
    assert (trial.num_preemptions, trial.num_gpu_blocks, trial.bound_by) == (0, 65, None)
    assert "served others" not in trial.spoiled_by


def test_every_run_has_lengths_of_the_workload_and_prompts_of_its_own(serving, workload):
    with serving() as server:
        engine = make_engine(server, workload)
        prompts = []
        for run in (RUN + 1, RUN + 2):  # the first is the warm-up
            engine.measure(CELL)
            bodies = [server.bodies[index] for index in range(6)]
            assert [len(body["prompt"]) for body in bodies] == workload.prompt_tokens.tolist()
            assert [body["max_tokens"] for body in bodies] == workload.output_tokens.tolist()
            assert all(body["stream"] and body["ignore_eos"] for body in bodies)
            assert server.headers[0]["X-Request-Id"] == f"maitre-{run}-0"
            prompts.append([body["prompt"] for body in bodies])
        assert prompts[0] != prompts[1]
        assert server.num_finished == 18


def test_a_server_without_metrics_leaves_its_side_unknown(serving, workload):
    with serving(has_metrics=False) as server:
        trial = make_engine(server, workload).measure(CELL).trial
    assert (trial.num_preemptions, trial.kv_usage, trial.num_gpu_blocks) == (None, None, None)


def test_requests_of_others_spoil_the_trial(serving, workload):
    with serving() as server:
        engine = make_engine(server, workload)
        assert "served others" not in engine.measure(CELL).trial.spoiled_by
        server.num_looks, server.num_others = 0, 3
        spoiled_by = engine.measure(CELL).trial.spoiled_by
    assert "the server served others, too: other requests that it finished: 3" in spoiled_by


def test_requests_can_come_at_their_own_times(serving, workload):
    with serving() as server:
        make_engine(server, workload, open_loop=True).measure(CELL)
        order = sorted(server.received_s, key=server.received_s.get)
    assert order == list(range(6))


def test_the_key_goes_with_every_request(serving, workload):
    with serving() as server:
        make_engine(server, workload, api_key="sesame").measure(CELL)
    assert {headers["Authorization"] for headers in server.headers.values()} == {"Bearer sesame"}


def test_another_cell_cannot_be_measured(serving, workload):
    with serving() as server:
        engine = make_engine(server, workload)
        with pytest.raises(UsageError, match="runs at 4x64") as caught:
            engine.measure(Cell(max_num_seqs=8, max_num_batched_tokens=64))
    assert "--attach-dials" in caught.value.hint
    assert engine.cells == (CELL,)


def test_refused_requests_fail_the_trial_with_the_servers_words(serving, workload):
    with serving(faults={2: "rejected"}) as server, pytest.raises(TrialFailure) as caught:
        make_engine(server, workload).measure(CELL)
    failed = caught.value.failed
    assert (failed.code, failed.engine, failed.cell) == ("requests-failed", "attach", CELL)
    assert "maximum context length" in failed.message
    assert failed.remedy


def test_a_server_that_is_gone_ends_the_study(serving, workload):
    with serving(faults={2: "server-error"}, is_ill=True) as server:
        engine = make_engine(server, workload)
        with pytest.raises(SystemFailure, match="does not answer any more"):
            engine.measure(CELL)
    with pytest.raises(SystemFailure):  # and now nothing listens at all
        engine.measure(CELL)


@pytest.mark.parametrize(
    ("config", "cell"),
    [
        ({"max_num_seqs": 16, "max_num_batched_tokens": 512, "policy": "fcfs"}, "16x512"),
        ({"max_num_seqs": 16}, "None"),
        ({"max_num_seqs": "many", "max_num_batched_tokens": 512}, "None"),
        (None, "None"),
    ],
)
def test_a_server_in_development_mode_says_which_cell_it_runs_at(serving, config, cell):
    with serving(dev_config=config) as server:
        assert str(served_cell(server.url)) == cell


def test_an_answer_that_is_nested_too_deeply_names_no_cell(monkeypatch):
    monkeypatch.setattr("maitre.trial.attach.get", lambda *_: Answer(200, b"[" * 100_000, ""))
    assert served_cell("http://server") is None
