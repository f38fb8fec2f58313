"""Production against the study it was tuned by."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maitre.errors import DoesNotFitError, InputError
from maitre.gpus import find_gpu
from maitre.models import load_model
from maitre.objectives import tune_latency, tune_rate
from maitre.records import Cell, ServerConfig, Workload
from maitre.search import product_grid
from maitre.setup import Setup
from maitre.slo import parse_latency_targets
from maitre.study import StudyDirectory
from maitre.tune import tune_simulated
from maitre.verify.foresight.credibility import ObservedFigures
from maitre.verify.foresight.drift import find_drift
from maitre.verify.foresight.observed_traffic import ObservedTraffic
from maitre.verify.foresight.studied_server import read_study

spec = importlib.util.spec_from_file_location("known_servers", Path(__file__).with_name("known_servers.py"))
known_servers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(known_servers)
TrueServer, bucketed, cell = known_servers.TrueServer, known_servers.bucketed, known_servers.cell
observe, truth = known_servers.observe, known_servers.truth

CELLS = product_grid([16, 32, 64, 128], [1024, 4096])
FEW = product_grid([32, 64], [1024, 4096])
MODEL, GPU, BLOCKS = "qwen2.5-7b", "L40S", 6000
LENGTHS = (500, 200)


def requests(prompt=LENGTHS[0], output=LENGTHS[1], seed=0, num=600, rate_rps=None):
    generator = np.random.default_rng(seed)
    lengths = [np.maximum(1, np.rint(m * np.exp(0.5 * generator.standard_normal(num)))) for m in (prompt, output)]
    arrival_s = None if rate_rps is None else np.cumsum(generator.exponential(1 / rate_rps, num))
    return Workload(name="x", source="x", prompt_tokens=lengths[0], output_tokens=lengths[1], arrival_s=arrival_s)


def setup(present=None):
    present = present or cell(64)
    server = ServerConfig(model=MODEL, max_model_len=32_768, enable_prefix_caching=False, **present.model_dump())
    return Setup(server, load_model(MODEL), find_gpu(GPU), BLOCKS)


def a_study(path, workload=None, tune=tune_simulated, cells=CELLS, **options):
    """Tuned in the simulator, with a pool that makes the number of slots matter."""
    workload = workload or requests()
    directory = StudyDirectory.create(path / "study", workload)
    return directory.finish(tune(workload, setup(), cells, **options))


def production(studied, prompt=LENGTHS[0], output=LENGTHS[1], slower=1.0, rate_rps=None, num=1200):
    """What is observed of the deployed cell with other requests: as many clients as it has slots, or a rate."""
    known = studied.known
    theta = known.calibration.step_time.coefficients * slower
    traffic = requests(prompt, output, seed=5, num=num, rate_rps=rate_rps)
    clients = None if rate_rps else known.server.max_num_seqs
    return observe(TrueServer(known, theta, traffic, clients))


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    path = tmp_path_factory.mktemp("tuned")
    a_study(path)
    return read_study(path / "study")


# stories


def test_the_same_traffic_is_kept(studied):
    found = find_drift(studied, *production(studied))
    assert found.verdict == "keep"
    assert 0 <= found.gain < 0.04
    assert found.gain_low <= found.gain <= found.gain_high
    assert "much as it was in the study" in found.reason
    assert found.expected.itl_mean_s == pytest.approx(found.observed.itl_mean_s, rel=0.1)
    assert found.studied.output_tokens_per_s == pytest.approx(found.expected.output_tokens_per_s, rel=0.1)
    means = [one for one in found.traffic if one.name in {"prompt_tokens", "output_tokens"}]
    assert [one.change for one in means] == pytest.approx([0, 0], abs=0.06)


def test_much_shorter_requests_need_another_tuning(tmp_path):
    """The pool held 30 long requests, and as many slots were best; now it holds 200."""
    a_study(tmp_path, workload=requests(2500, 500, num=200))
    studied = read_study(tmp_path / "study")
    deployed = studied.known.server.cell
    assert deployed.max_num_seqs <= 32
    found = find_drift(studied, *production(studied, prompt=200, output=200))
    assert found.verdict == "tune-again", found.reason
    assert found.gain_low > 0.3
    assert found.best.max_num_seqs > deployed.max_num_seqs
    assert "prompts are 9" in found.reason
    assert "shorter" in found.reason
    theta, now = studied.known.calibration.step_time.coefficients, requests(200, 200, seed=9, num=1200)
    rates = []
    for one in (found.best, deployed):
        seen = truth(TrueServer(studied.known, theta, now, one.max_num_seqs), one)
        rates.append(seen.finished.sum() / (seen.end_s - seen.begin_s))
    assert rates[0] / rates[1] == pytest.approx(1 + found.gain, rel=0.1)


def test_a_change_of_lengths_that_costs_nothing_is_kept(studied):
    """Distance is no reason: prompts of half the length are another traffic, and the same cell is best for it."""
    found = find_drift(studied, *production(studied, prompt=250))
    assert found.verdict == "keep"
    assert "prompts are 4" in found.reason
    assert "shorter" in found.reason


def test_a_server_that_is_much_slower_than_in_the_study_cannot_be_judged(studied):
    traffic, observed = production(studied)
    found = find_drift(studied, traffic, observed.model_copy(update={"itl_mean_s": 3 * observed.itl_mean_s}))
    assert found.verdict == "cannot-tell"
    assert found.gain is None
    assert found.best is None
    assert "not used" in found.reason
    assert found.traffic


def test_a_server_that_is_a_little_slower_is_judged_at_its_own_speed(studied):
    found = find_drift(studied, *production(studied, slower=1.2))
    assert found.credibility.scale == pytest.approx(1.2, rel=0.05)
    assert found.verdict == "keep"


def test_another_cell_than_the_recommended_one_is_deployed(studied, tmp_path):
    a_study(tmp_path)
    deployed = read_study(tmp_path / "study", cell(16, 1024))
    found = find_drift(deployed, *production(deployed))
    assert found.deployed == cell(16, 1024)
    assert found.verdict == "tune-again"
    assert found.gain > 0.3


# other objectives


def test_the_rate_within_targets(tmp_path):
    targets = parse_latency_targets(["ttft_p95=2s", "itl_p99=120ms"])
    a_study(tmp_path, tune=tune_rate, targets=targets, cells=FEW)
    studied = read_study(tmp_path / "study")
    assert studied.study.objective.kind == "rate"
    rate_rps = 0.7 * max(t.highest_rate.rate_rps for t in studied.study.cells)
    found = find_drift(studied, *production(studied, rate_rps=rate_rps))
    assert found.verdict == "keep", found.reason
    assert 0.3 < found.load < 1
    out_of_reach = studied.study.objective.model_copy(update={"targets": ("ttft_p95=1ms",)})
    hopeless = replace(studied, study=studied.study.model_copy(update={"objective": out_of_reach}))
    found = find_drift(hopeless, *production(studied, rate_rps=rate_rps))
    assert found.verdict == "keep"
    assert found.gain is None
    assert "no cell of the study's grid meets its targets" in found.reason


def test_the_latency_at_the_traffic_s_own_rate(tmp_path):
    a_study(
        tmp_path, workload=requests(rate_rps=2.0), tune=tune_latency, targets=parse_latency_targets(["ttft_p95=2s"])
    )
    studied = read_study(tmp_path / "study")
    found = find_drift(studied, *production(studied, rate_rps=2.0))
    assert found.gain is not None
    rate = next(one for one in found.traffic if one.name == "rate_rps")
    assert abs(rate.change) < 0.15
    more = find_drift(studied, *production(studied, rate_rps=3.0))
    assert "the rate is" in more.reason
    assert "higher" in more.reason


# what a study knows


def test_the_pool_of_production_counts_and_other_cells_follow_it(tmp_path):
    a_study(tmp_path)
    path = tmp_path / "study"
    at = read_study(path).known.num_gpu_blocks
    assert at(cell(64)) == BLOCKS
    assert read_study(path, num_gpu_blocks=3000).known.num_gpu_blocks(cell(16, 1024)) == 3000


def test_a_recorded_study_is_known_by_its_steps(tmp_path):
    """What was measured outweighs what ships: the recording of another GPU's steps comes with the study."""
    shared = Path(__file__).parents[3] / "tests/data"
    recordings = sorted(shared.rglob("*.npz"))
    recording = next((path for path in recordings if path.with_suffix(".json").exists()), None)
    assert recording is not None
    a_study(tmp_path)
    for suffix in (".json", ".npz"):
        (tmp_path / "study/recording").with_suffix(suffix).write_bytes(recording.with_suffix(suffix).read_bytes())
    content = json.loads(recording.with_suffix(".json").read_text("utf-8"))
    known = read_study(tmp_path / "study").known
    assert known.calibration.kind == "fitted"
    first = content["cells"][0]
    recorded = Cell(max_num_seqs=first["max_num_seqs"], max_num_batched_tokens=first["max_num_batched_tokens"])
    assert known.num_gpu_blocks(recorded) == (first.get("num_gpu_blocks") or content["num_gpu_blocks"])


def test_a_study_of_an_unknown_server_needs_more(tmp_path):
    study = a_study(tmp_path)
    strange = study.model_copy(update={"gpu": "Abacus 9000"})
    StudyDirectory(tmp_path / "study").finish(strange)
    with pytest.raises(InputError, match="recorded no steps") as refused:
        read_study(tmp_path / "study")
    assert "--model and --gpu" in refused.value.hint


def test_no_study(tmp_path):
    with pytest.raises(InputError):
        read_study(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", '{"schema_version": "maitre-workload-1"}'])
def test_a_study_whose_workload_is_broken(tmp_path, content):
    a_study(tmp_path)
    (tmp_path / "study/workload.json").write_text(content, "utf-8")
    with pytest.raises(InputError, match=r"workload\.json"):
        read_study(tmp_path / "study")


def test_requests_that_no_longer_fit_the_pool(studied):
    huge = bucketed(np.full(50, 20_000))
    traffic = ObservedTraffic(huge, bucketed(np.full(50, 10)), 1.0, 1.0, 5.0)
    small = replace(studied, known=replace(studied.known, num_gpu_blocks=lambda _: 1000))
    with pytest.raises(DoesNotFitError):
        find_drift(small, traffic, ObservedFigures())
