"""Requests at a rate that is asked for, and other samples of the same traffic."""

import numpy as np
import pytest

from maitre.errors import UsageError
from maitre.records import Workload
from maitre.workload import load_workload
from maitre.workload.arrivals import every_nth, own_rate_rps, repeated, resampled, unit_arrivals


def traffic(arrival_s=None, **changes):
    facts = {"name": "w", "source": "s", "prompt_tokens": [10, 20, 30, 40, 50], "output_tokens": [1, 2, 3, 4, 5]}
    return Workload(**facts | {"arrival_s": arrival_s} | changes)


def test_without_times_requests_come_as_a_poisson_process():
    times = unit_arrivals(load_workload("fixed:8:8", num_requests=20_000), seed=0)
    gaps = np.diff(times)
    assert times[0] == 0
    assert gaps.mean() == pytest.approx(1)
    assert gaps.std() == pytest.approx(1, abs=0.03)
    assert (gaps > 2).mean() == pytest.approx(np.exp(-2), abs=0.01)


def test_the_seed_decides_and_nothing_else_does():
    short, long = load_workload("fixed:8:8", num_requests=50), load_workload("fixed:900:80", num_requests=50)
    assert unit_arrivals(short, 3).tolist() == unit_arrivals(long, 3).tolist()
    assert unit_arrivals(short, 3).tolist() != unit_arrivals(short, 4).tolist()


def test_own_times_keep_their_bunches():
    times = unit_arrivals(traffic([0.0, 0.0, 4.0, 4.0, 8.0]), seed=0)
    assert times.tolist() == [0, 0, 2, 2, 4]


def test_the_own_rate_is_that_of_the_gaps():
    assert own_rate_rps(traffic([0.0, 1.0, 2.0, 3.0, 8.0])) == 0.5
    assert own_rate_rps(traffic()) is None


@pytest.mark.parametrize("arrival_s", [[0.0] * 5])
def test_requests_that_come_together_have_no_rate(arrival_s):
    with pytest.raises(UsageError, match="come at one time"):
        unit_arrivals(traffic(arrival_s), seed=0)


def test_one_request_has_no_rate():
    with pytest.raises(UsageError, match="no rate"):
        unit_arrivals(Workload(name="w", source="s", prompt_tokens=[1], output_tokens=[1]), seed=0)


def test_copies_share_prefixes_within_but_not_between_them():
    shared = traffic([0.0, 1.0, 2.0, 3.0, 4.0], prefix_hashes=((7,), (7,), (9,), (1,), (1,)), prefix_block_tokens=64)
    twice = repeated(shared, 2)
    assert twice.prompt_tokens.tolist() == [10, 20, 30, 40, 50] * 2
    assert twice.arrival_s is None
    first, second = twice.prefix_hashes[:5], twice.prefix_hashes[5:]
    assert first[0] == first[1] != first[2]
    assert second[0] == second[1] != second[2]
    assert not {*first} & {*second}


def test_another_sample_has_the_same_requests_in_other_numbers():
    workload = load_workload("lognormal:500:0.8:250:0.8", num_requests=2000)
    other = resampled(workload, seed=1)
    pairs = set(zip(workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), strict=True))
    assert set(zip(other.prompt_tokens.tolist(), other.output_tokens.tolist(), strict=True)) < pairs
    assert other.prompt_tokens.mean() == pytest.approx(workload.prompt_tokens.mean(), rel=0.1)
    assert other.prompt_tokens.tolist() != workload.prompt_tokens.tolist()


def test_another_sample_of_shared_prefixes_keeps_their_order():
    hashes = tuple((i,) for i in range(5))
    other = resampled(traffic([0.0, 1.0, 2.0, 3.0, 4.0], prefix_hashes=hashes, prefix_block_tokens=64), seed=0)
    steps = {(b[0] - a[0]) % 5 for a, b in zip(other.prefix_hashes, other.prefix_hashes[1:], strict=False)}
    assert steps == {1}
    assert other.prefix_hashes != hashes
    assert other.arrival_s.tolist() == [0, 1, 2, 3, 4]


def test_every_second_request():
    assert every_nth(traffic([0.0, 1.0, 2.0, 3.0, 4.0]), 2).prompt_tokens.tolist() == [10, 30, 50]
