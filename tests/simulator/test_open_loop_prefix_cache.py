"""Without shared prefixes the prefix cache changes nothing, unless a preempted request finds its own blocks."""

import pytest

from maitre.calibration import shipped_calibrations
from maitre.simulator import replay as module
from maitre.simulator.replay import replay_arrivals
from maitre.simulator.rules import SchedulerRules
from maitre.workload import load_workload
from maitre.workload.arrivals import unit_arrivals

STEP_TIME = shipped_calibrations()[0].step_time
PLAIN = load_workload("lognormal:200:0.6:80:0.6", num_requests=80)
WORKLOAD = PLAIN.model_copy(update={"arrival_s": unit_arrivals(PLAIN, 0) / 20})


@pytest.mark.parametrize(("blocks", "preempts"), [(2000, False), (110, True)])
def test_leaving_the_cache_out_gives_the_same_schedule(blocks, preempts):
    rules = SchedulerRules(32, 512, blocks, enable_prefix_caching=True)
    shortcut = replay_arrivals(WORKLOAD, rules, STEP_TIME)
    whole = module._replay_arrivals(WORKLOAD, rules, STEP_TIME, fast_forward=True)
    assert bool(whole.num_preemptions.any()) == preempts
    assert shortcut.step_end_s.tolist() == whole.step_end_s.tolist()
    assert {name: c.tolist() for name, c in shortcut.columns.items()} == {
        name: c.tolist() for name, c in whole.columns.items()
    }
