"""A server of which nobody says what it is: its own windows tell how long its steps are, or do not."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maitre.errors import InputError
from maitre.metric_series import Histogram
from maitre.records import Workload
from maitre.verify.foresight.expectation import expect
from maitre.verify.foresight.fitted_steps import fit_windows
from maitre.verify.window_figures import window_figures

spec = importlib.util.spec_from_file_location("known_servers", Path(__file__).with_name("known_servers.py"))
known_servers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(known_servers)
a_server, cell, observe, truth = (getattr(known_servers, name) for name in ("a_server", "cell", "observe", "truth"))

BLOCKS = 20_000


def mean_of(value):
    """A histogram of which only the mean matters."""
    return Histogram(np.array([1.0, np.inf]), np.array([1000.0, 0.0]), 1000.0 * value)


def windows_over_a_day(server, shares):
    """Sub-windows of the same traffic at other rates, as `figures_over_time` has them."""
    windows = []
    for number, share in enumerate(shares):
        arrival_s = server.requests.arrival_s / share
        order = np.random.default_rng(number).permutation(len(arrival_s))[:400]
        requests = Workload(
            name="day", source="drawn", prompt_tokens=server.requests.prompt_tokens[order],
            output_tokens=server.requests.output_tokens[order], arrival_s=arrival_s[:400],
        )  # fmt: skip
        here = replace(server, requests=requests)
        traffic, seen = observe(here)
        windows.append(
            replace(
                window_figures([]), running=seen.running, kv_usage=seen.kv_usage, itl=mean_of(seen.itl_mean_s),
                prompt_tokens_per_s=traffic.finished_rps * traffic.prompt_lengths.mean,
            )
        )  # fmt: skip
    return windows


@pytest.fixture(scope="module")
def busy_server():
    return a_server(cell(16), load=0.93)


@pytest.fixture(scope="module")
def day(busy_server):
    return windows_over_a_day(busy_server, (0.15, 0.3, 0.5, 0.7, 0.85, 1.0))


def anonymous(server, calibration):
    config = server.known.server.model_copy(update={"model": "unknown"})
    return replace(server.known, server=config, calibration=calibration, only_means=True)


def test_calm_and_busy_hours_tell_what_more_slots_do(busy_server, day):
    calibration = fit_windows(day, busy_server.known.server, 16 * BLOCKS)
    assert "6 parts of the observed window" in calibration.summary
    traffic, observed = observe(busy_server)
    expected = expect(traffic, anonymous(busy_server, calibration), observed, [cell(32)])
    assert not expected.withheld
    assert expected.credibility.scale == pytest.approx(1, rel=0.12)
    (one,) = expected.candidates
    now, then = (truth(busy_server, at).figures(BLOCKS) for at in (cell(16), cell(32)))
    assert one.changes["itl_mean_s"].ratio == pytest.approx(then["itl_mean_s"] / now["itl_mean_s"], rel=0.1)
    assert one.figures.keeps_up
    assert one.figures.waiting < 0.2


def test_percentiles_of_steps_that_were_not_told_apart_are_not_told(busy_server, day):
    calibration = fit_windows(day, busy_server.known.server, 16 * BLOCKS)
    traffic, observed = observe(busy_server)
    expected = expect(traffic, anonymous(busy_server, calibration), observed, [cell(32)])
    assert expected.figures.itl_mean_s is not None
    assert expected.figures.itl_p99_s is None
    assert "itl_p99_s" not in expected.candidates[0].changes


def test_a_load_that_never_changes_tells_nothing_about_more(busy_server):
    steady = windows_over_a_day(busy_server, (1.0, 1.0, 1.0, 1.0))
    with pytest.raises(InputError, match="the load hardly changes") as refused:
        fit_windows(steady, busy_server.known.server, 16 * BLOCKS)
    assert "--model and --gpu, or --study" in refused.value.hint


def test_too_few_windows(busy_server, day):
    with pytest.raises(InputError, match="3 parts of the window"):
        fit_windows(day[:3], busy_server.known.server, 16 * BLOCKS)
    silent = [replace(one, kv_usage=None) for one in day]
    with pytest.raises(InputError, match="0 parts of the window"):
        fit_windows(silent, busy_server.known.server, 16 * BLOCKS)


def test_two_engines_are_one_server_each(busy_server, day):
    doubled = [
        replace(one, running=2 * one.running, prompt_tokens_per_s=2 * one.prompt_tokens_per_s) for one in day
    ]  # fmt: skip
    one = fit_windows(day, busy_server.known.server, 16 * BLOCKS)
    two = fit_windows(doubled, busy_server.known.server, 16 * BLOCKS, num_engines=2)
    assert two.step_time == one.step_time
