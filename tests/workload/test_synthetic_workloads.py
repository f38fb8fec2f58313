import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import UsageError
from maitre.workload import REFERENCES, load_workload, reference_workload


def test_fixed_lengths_are_what_they_say() -> None:
    workload = load_workload("fixed:512:256")
    assert workload.num_requests == 1000
    assert set(workload.prompt_tokens.tolist()) == {512}
    assert set(workload.output_tokens.tolist()) == {256}


def test_log_normal_lengths_have_the_median_and_spread_asked_for() -> None:
    workload = load_workload("lognormal:150:1.0:300:0.8", num_requests=100_000)
    logs = np.log(workload.prompt_tokens), np.log(workload.output_tokens)
    assert np.median(workload.prompt_tokens) == pytest.approx(150, rel=0.02)
    assert np.median(workload.output_tokens) == pytest.approx(300, rel=0.02)
    assert logs[0].std() == pytest.approx(1.0, rel=0.02)
    assert logs[1].std() == pytest.approx(0.8, rel=0.02)
    assert abs(np.corrcoef(*logs)[0, 1]) < 0.02


MEDIANS, SIGMAS = st.floats(1, 1e6), st.floats(0, 3)


@given(st.tuples(MEDIANS, SIGMAS, MEDIANS, SIGMAS), st.integers(0, 2**63), st.integers(1, 50))
def test_every_spec_gives_lengths_of_one_or_more_and_the_same_ones_again(
    fields: tuple[float, ...], seed: int, n: int
) -> None:
    spec = ":".join(["lognormal", *map(str, fields)])
    workload = load_workload(spec, num_requests=n, seed=seed)
    assert workload.num_requests == n
    assert min(workload.prompt_tokens.min(), workload.output_tokens.min()) >= 1
    assert workload.model_dump() == load_workload(spec, num_requests=n, seed=seed).model_dump()


@pytest.mark.parametrize(
    "spec",
    [
        *("fixed:512", "fixed:0:1", "fixed:1.5:2", "fixed:a:b", "fixed:", "lognormal:1:2:3", "lognormal:100:9:100:1"),
        *("lognormal:100:-1:100:1", "lognormal:nan:1:1:1", "lognormal:1e9:1:1:1", "gauss:1:2", "http://host/x.csv"),
    ],
)
def test_a_wrong_spec_is_answered_with_the_grammar(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_workload(spec)
    assert "lognormal:MEDIAN_IN:SIGMA:MEDIAN_OUT:SIGMA" in caught.value.hint


def test_numbers_of_requests_and_seeds_are_checked() -> None:
    with pytest.raises(UsageError, match="too few"):
        load_workload("fixed:1:1", num_requests=0)
    with pytest.raises(UsageError, match="negative"):
        load_workload("fixed:1:1", seed=-1)


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_workload_has_the_medians_of_its_profile(name: str) -> None:
    workload, lengths = reference_workload(name, 20_000, 0), REFERENCES[name].lengths
    assert np.median(workload.prompt_tokens) == pytest.approx(lengths.prompt_median, rel=0.04)
    assert np.median(workload.output_tokens) == pytest.approx(lengths.output_median, rel=0.04)


def test_an_unknown_reference_suggests_the_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        reference_workload("summarization")
    assert "did you mean summarisation?" in caught.value.hint
