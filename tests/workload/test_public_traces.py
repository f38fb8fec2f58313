"""The statistics of public traces, against figures computed independently of this package."""

from pathlib import Path

import numpy as np
import pytest

from maitre.workload import REFERENCES, describe, load_workload


@pytest.mark.parametrize(
    ("file", "num_requests", "prompt", "output", "rate_rps", "gap_cv"),
    [
        ("azure_AzureLLMInferenceTrace_conv.csv", 19366, (1020, 2735, 1155), (129, 424, 211), 5.53, 1.09),
        ("azure_AzureLLMInferenceTrace_code.csv", 8819, (1469, 5194, 2048), (13, 55, 28), 2.57, 13.15),
        ("mooncake_conversation_trace.jsonl", 12031, (6909, 27367, 12035), (350, 597, 343), 3.40, 3.03),
    ],
)
def test_a_public_trace_has_its_known_statistics(
    *,
    shared_path: Path,
    file: str,
    num_requests: int,
    prompt: tuple[int, int, int],
    output: tuple[int, int, int],
    rate_rps: float,
    gap_cv: float,
) -> None:
    profile = describe(load_workload(str(shared_path / "data" / "traces" / file)))
    assert (profile.num_requests, profile.num_dropped) == (num_requests, 0)
    for lengths, (p50, p90, mean) in ((profile.prompt_tokens, prompt), (profile.output_tokens, output)):
        assert lengths.p50 == p50
        assert lengths.p90 == pytest.approx(p90, rel=0.002)
        assert lengths.mean == pytest.approx(mean, abs=1)
    assert profile.rate_rps == pytest.approx(rate_rps, abs=0.01)
    assert profile.arrival_gap_cv == pytest.approx(gap_cv, abs=0.01)


def test_the_mooncake_trace_shares_prefixes_in_chunks_of_512(shared_path: Path) -> None:
    workload = load_workload(str(shared_path / "data" / "traces" / "mooncake_conversation_trace.jsonl"))
    assert workload.prefix_hashes is not None
    assert workload.prefix_block_tokens == 512
    num_hashes = np.array([len(hashes) for hashes in workload.prefix_hashes])
    assert (num_hashes == -(-workload.prompt_tokens // 512)).all()
    share = describe(workload).shared_prefix_share
    assert share is not None
    assert 0.3 < share < 0.5


def test_the_spread_of_the_reference_workloads_is_that_of_the_traces_they_name(shared_path: Path) -> None:
    for file, name in (("conv", "chat"), ("code", "coding")):
        path = shared_path / "data" / "traces" / f"azure_AzureLLMInferenceTrace_{file}.csv"
        profile, lengths = describe(load_workload(str(path))), REFERENCES[name].lengths
        for measured, sigma in (
            (profile.prompt_tokens, lengths.prompt_sigma),
            (profile.output_tokens, lengths.output_sigma),
        ):
            assert np.log(measured.p90 / measured.p50) / 1.2816 == pytest.approx(sigma, abs=0.05)
