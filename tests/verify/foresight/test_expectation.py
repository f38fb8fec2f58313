"""What a turn of the dials is expected to change, held against what it changes."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maitre.errors import DoesNotFitError, InputError
from maitre.metric_series import Histogram
from maitre.verify.foresight.credibility import ObservedFigures
from maitre.verify.foresight.expectation import expect
from maitre.verify.foresight.observed_traffic import ObservedTraffic, observed_traffic
from maitre.verify.foresight.steady_traffic import SteadyTraffic
from maitre.verify.window_figures import window_figures

spec = importlib.util.spec_from_file_location("known_servers", Path(__file__).with_name("known_servers.py"))
known_servers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(known_servers)
a_server, bucketed, cell = known_servers.a_server, known_servers.bucketed, known_servers.cell
known_server, observe, truth = known_servers.known_server, known_servers.observe, known_servers.truth

CALM = ObservedFigures()


def told_and_true(server, *cells):
    """Expectations, and the true ratios of each candidate."""
    expected = expect(*reordered(server), cells)
    present = server.known.server.cell
    now = truth(server, present).figures(server.rules(present).num_usable_blocks)
    ratios = []
    for one in cells:
        then = truth(server, one).figures(server.rules(one).num_usable_blocks)
        ratios.append({name: then[name] / now[name] if now[name] else np.nan for name in now})
    return expected, ratios


def reordered(server):
    traffic, observed = observe(server)
    return traffic, server.known, observed


def holds(change, ratio, slack=0.01):
    return change.low - slack <= ratio and (change.high is None or ratio <= change.high + slack)


# stories


def test_a_queue_for_slots_goes_when_there_are_twice_as_many():
    expected, (ratios,) = told_and_true(a_server(cell(16), load=0.93), cell(32))
    assert not expected.withheld
    (one,) = expected.candidates
    assert expected.figures.waiting > 1
    assert one.figures.waiting < 0.2
    assert one.figures.keeps_up
    assert one.keeps_up_surely
    assert one.changes["itl_mean_s"].ratio == pytest.approx(ratios["itl_mean_s"], rel=0.07)
    assert one.changes["ttft_p95_s"].ratio < 0.5
    assert ratios["ttft_p95_s"] < 0.5
    assert holds(one.changes["output_tokens_per_s"], ratios["output_tokens_per_s"], 0.02)
    assert any("a second" in told for told in expected.assumptions)


def test_clients_that_wait_for_answers_get_more_of_them_with_more_slots():
    expected, (ratios,) = told_and_true(a_server(cell(16)), cell(32))
    change = expected.candidates[0].changes["output_tokens_per_s"]
    assert ratios["output_tokens_per_s"] > 1.3
    assert change.ratio == pytest.approx(ratios["output_tokens_per_s"], rel=0.05)
    assert holds(change, ratios["output_tokens_per_s"])
    assert expected.candidates[0].figures.running == pytest.approx(32, rel=0.1)
    assert any("32 clients" in told for told in expected.assumptions)


def test_preemptions_go_with_fewer_slots():
    crowded = a_server(cell(32), num_gpu_blocks=700, load=0.97)
    expected, ratios = told_and_true(crowded, cell(16), cell(8))
    assert not expected.withheld
    assert expected.figures.preemptions_per_min > 1
    for one, true_ratio in zip(expected.candidates, ratios, strict=True):
        assert one.changes["preemptions_per_min"].ratio == pytest.approx(true_ratio["preemptions_per_min"], abs=0.3)
    assert expected.candidates[1].figures.preemptions_per_min < 0.1 * expected.figures.preemptions_per_min


def test_a_smaller_token_budget_shortens_the_longest_gaps():
    expected, (ratios,) = told_and_true(a_server(cell(32, 8192), load=0.7, prompt=2500), cell(32, 1024))
    change = expected.candidates[0].changes["itl_p99_s"]
    assert ratios["itl_p99_s"] < 0.7
    assert change.ratio == pytest.approx(ratios["itl_p99_s"], rel=0.15)


def test_more_requests_than_it_can_serve_are_told_as_capacity():
    expected, (ratios,) = told_and_true(a_server(cell(16), load=1.2), cell(32))
    assert not expected.figures.keeps_up
    assert expected.figures.waiting is None
    assert expected.figures.ttft_p95_s is None
    assert expected.candidates[0].figures.keeps_up
    assert expected.candidates[0].changes["output_tokens_per_s"].ratio == pytest.approx(1.2, rel=0.07)
    assert ratios["output_tokens_per_s"] == pytest.approx(1.2, rel=0.07)


def test_a_backlog_is_worked_off_at_capacity():
    traffic, known, observed = reordered(a_server(cell(16)))
    queue = replace(traffic, arrival_rps=0.01 * traffic.finished_rps)
    assert queue.loop == "backlog"
    expected = expect(queue, known, observed, [cell(32)])
    assert not expected.figures.keeps_up
    assert expected.figures.requests_per_s == pytest.approx(traffic.finished_rps, rel=0.07)


def test_a_cached_prefix_is_not_computed_again():
    traffic, known, _ = reordered(a_server(cell(16), load=0.8))
    caching = replace(known, server=known.server.model_copy(update={"enable_prefix_caching": True}))
    plain, cached = (expect(replace(traffic, prefix_hit_rate=share), caching, CALM, []).figures for share in (0.0, 0.5))
    assert cached.ttft_p50_s < 0.9 * plain.ttft_p50_s
    assert cached.capacity_rps > 1.05 * plain.capacity_rps


def test_a_queue_that_comes_to_rest_shows_that_the_server_keeps_up():
    """Whatever the steps seem to be: a queue that grew would be twice as long at the end as on average."""
    traffic, known, observed = reordered(a_server(cell(16), load=0.9))
    slower = observed.model_copy(update={"itl_mean_s": 1.12 * observed.itl_mean_s})
    assert expect(replace(traffic, growth=0.0), known, slower, []).figures.keeps_up
    assert not expect(replace(traffic, growth=2 * traffic.in_flight_mean), known, slower, []).figures.keeps_up


# the interval


def test_another_step_time_that_is_possible_is_within_the_interval():
    server = a_server(cell(16))
    inside = []
    for seed in range(6):
        theta = server.known.calibration.draw_coefficients(1, np.random.default_rng(seed))[0]
        expected, (ratios,) = told_and_true(replace(server, coefficients=theta), cell(64))
        inside.append(
            bool(expected.withheld) or holds(expected.candidates[0].changes["itl_mean_s"], ratios["itl_mean_s"])
        )
    assert sum(inside) >= 5


def test_the_interval_grows_with_what_is_not_known():
    traffic, known, observed = reordered(a_server(cell(16)))
    vague = known.calibration.model_copy(
        update={"covariance": tuple(tuple(9 * value for value in row) for row in known.calibration.covariance)}
    )
    widths = []
    for calibration in (known.calibration, vague):
        change = expect(traffic, replace(known, calibration=calibration), observed, [cell(64)]).candidates[0].changes
        widths.append(np.log(change["itl_mean_s"].high / change["itl_mean_s"].low))
    assert widths[1] > 1.2 * widths[0]


# properties


def test_turning_nothing_changes_nothing():
    traffic, known, observed = reordered(a_server(cell(16), load=0.9))
    assert expect(traffic, known, observed, [cell(16)]).candidates == ()
    roomy = known_server(cell(16, 60_000), 20_000)
    (one,) = expect(traffic, roomy, observed, [cell(16, 65_000)]).candidates  # neither budget ever binds
    assert {name: change.ratio for name, change in one.changes.items()} == pytest.approx(dict.fromkeys(one.changes, 1))


@pytest.mark.parametrize("loop", ["open", "closed"])
def test_more_slots_never_let_more_requests_wait_where_slots_bind(loop):
    traffic, known, _ = reordered(a_server(cell(8), load=None if loop == "closed" else 0.95))
    simulated = SteadyTraffic(traffic, known, 3, loop)
    theta = known.calibration.step_time.coefficients
    found = [simulated.figures(cell(seqs), theta) for seqs in (4, 8, 16, 32, 64)]
    waiting = [np.inf if one.waiting is None else one.waiting for one in found]
    assert waiting == sorted(waiting, reverse=True)
    capacity = [one.capacity_rps for one in found]
    assert capacity == sorted(capacity)


def test_the_same_seed_gives_the_same_expectation():
    traffic, known, observed = reordered(a_server(cell(16), load=0.9))
    first, second = (expect(traffic, known, observed, [cell(32)], seed=5) for _ in range(2))
    assert first == second


# whether the simulator is believed


def test_a_slower_server_is_anchored_and_told():
    expected, _ = told_and_true(a_server(cell(16), load=0.8, slower=1.2), cell(32))
    assert expected.credibility.is_anchored
    assert 1.15 < expected.credibility.scale < 1.45
    assert any("every step lasts" in told for told in expected.assumptions)


def test_steps_that_are_far_from_the_calibration_give_no_figures():
    traffic, known, observed = reordered(a_server(cell(16), load=0.8))
    slow = observed.model_copy(update={"itl_mean_s": 2.5 * observed.itl_mean_s})
    expected = expect(traffic, known, slow, [cell(32)])
    assert expected.candidates == ()
    assert expected.figures is None
    assert "ms: its figures are not used" in expected.withheld
    assert [check.holds for check in expected.credibility.checks] == [False]


def test_another_pool_than_it_is_taken_for_gives_no_figures():
    traffic, known, observed = reordered(a_server(cell(16), load=0.8, num_gpu_blocks=4000))
    wrong = replace(known, num_gpu_blocks=lambda _: 12_000)
    assert "KV usage" in expect(traffic, wrong, observed, [cell(32)]).withheld


def test_lengths_that_do_not_explain_how_many_run_give_no_figures():
    traffic, known, observed = reordered(a_server(cell(32), load=0.5))
    longer = replace(traffic, output_lengths=bucketed(np.full(100, 600)))
    assert "running requests" in expect(longer, known, observed, [cell(64)]).withheld


def test_a_time_to_first_token_that_it_does_not_explain_is_told():
    traffic, known, observed = reordered(a_server(cell(32), load=0.5))
    late = observed.model_copy(update={"ttft_mean_s": 20 * observed.ttft_mean_s})
    expected = expect(traffic, known, late, [cell(64)])
    assert not expected.withheld
    assert "only its changes count" in expected.credibility.ttft_doubt
    assert expected.credibility.ttft_doubt in expected.assumptions


def test_without_an_observation_nothing_is_scaled():
    traffic, known, _ = reordered(a_server(cell(16), load=0.8))
    expected = expect(traffic, known, CALM, [])
    assert expected.credibility.scale == 1.0
    assert not expected.credibility.is_anchored


# what cannot be simulated


def test_a_request_that_the_pool_does_not_hold():
    traffic, known, observed = reordered(a_server(cell(16), load=0.8))
    with pytest.raises(DoesNotFitError, match="larger than the KV pool of 16x4096"):
        expect(traffic, replace(known, num_gpu_blocks=lambda _: 20), observed, [])
    shrinks = replace(known, num_gpu_blocks=lambda one: 20 if one.max_num_seqs > 16 else 20_000)
    expected = expect(traffic, shrinks, observed, [cell(32), cell(8)])
    assert list(expected.infeasible) == ["32x4096"]
    assert [one.cell for one in expected.candidates] == [cell(8)]


def test_a_window_without_lengths_has_no_traffic():
    with pytest.raises(InputError, match="how long they are") as refused:
        observed_traffic(window_figures([]))
    assert "vllm:request_generation_tokens" in refused.value.hint


# traffic


@pytest.mark.parametrize(
    ("in_flight", "p95", "loop"),
    [(64.0, 64.0, "closed"), (64.0, 78.0, "open"), (4.0, 4.0, "closed"), (4.0, 8.0, "open"), (64.0, None, "open")],
)
def test_a_constant_number_in_flight_means_clients_that_wait(in_flight, p95, loop):
    lengths = Histogram(np.array([100.0, np.inf]), np.array([10.0, 0.0]), 500.0)
    assert ObservedTraffic(lengths, lengths, 1.0, 1.0, in_flight, p95).loop == loop


def test_two_engines_share_the_traffic():
    lengths = Histogram(np.array([100.0, np.inf]), np.array([10.0, 0.0]), 500.0)
    figures = replace(
        window_figures([]), duration_s=10.0, num_requests=100.0, arrivals=120.0, running=30.0, waiting=10.0,
        prompt_lengths=lengths, output_lengths=lengths, prefix_hit_rate=0.25,
    )  # fmt: skip
    traffic = observed_traffic(figures, np.array([38.0, 40.0, 42.0]), num_engines=2)
    assert (traffic.arrival_rps, traffic.finished_rps, traffic.in_flight_mean) == (6.0, 5.0, 20.0)
    assert traffic.prefix_hit_rate == 0.25
    assert observed_traffic(figures).in_flight_mean == 40.0
