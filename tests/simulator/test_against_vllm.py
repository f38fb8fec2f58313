"""Every step of the scheduler against vLLM's own scheduler, with every switch (benchmarks/record_schedules.py)."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from maitre.records import Workload
from maitre.simulator.block_keys import assign_block_keys
from maitre.simulator.block_pool import BlockPool, PrefixCachingBlockPool
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.scheduler import Scheduler
from maitre.simulator.sequence import Sequence
from maitre.simulator.step import Step

RECORDED = json.loads(gzip.decompress((Path(__file__).parents[1] / "data" / "vllm_schedules.json.gz").read_bytes()))
SCENARIOS = RECORDED["scenarios"]
FIGURES = ("first_scheduled_step", "first_token_step", "last_token_step", "num_preemptions", "num_cached_tokens")


def name_of(number, scenario):
    rules, requests = scenario["rules"], scenario["requests"]
    switches = {
        "async": rules["async_scheduling"],
        "caching": rules["enable_prefix_caching"],
        "shared": "prefix_hashes" in requests,
        "priority": rules["priority_policy"],
        "gate": rules["whole_prompt_gate"],
        "arrivals": "arrival_tick" in requests,
        "preemptions": any(scenario["num_preemptions"]),
        f"watermark{rules['watermark']}": rules["watermark"],
        f"long{rules['long_prefill_token_threshold']}": rules["long_prefill_token_threshold"],
    }
    cell = f"{rules['max_num_seqs']}x{rules['max_num_batched_tokens']}x{rules['num_gpu_blocks']}b{rules['block_size']}"
    return "-".join([f"{number:03}", *(name for name, is_on in switches.items() if is_on), cell])


def server_of(scenario):
    """A scheduler with the scenario's rules, its sequences, and the tick before which each of them arrives."""
    rules = SchedulerRules(**scenario["rules"], exempt_lone_request=True)
    requests = dict(scenario["requests"])
    count = len(requests["prompt_tokens"])
    arrivals, priorities = requests.pop("arrival_tick", [0] * count), requests.pop("priority", [0] * count)
    workload = Workload(name="scenario", source="vLLM's scheduler", **requests)
    keys = assign_block_keys(workload, rules.block_size)
    pool: BlockPool | PrefixCachingBlockPool = BlockPool(rules.num_usable_blocks, rules.block_size)
    if rules.enable_prefix_caching:
        num_keys = 1 + max((int(k.max()) for k in keys if len(k)), default=0)
        pool = PrefixCachingBlockPool(rules.num_usable_blocks, rules.block_size, num_keys, reuse_unhashed_first=True)
    lengths = zip(workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), priorities, strict=True)
    sequences = [
        Sequence(index, prompt, output, priority=priority, block_keys=keys[index])
        for index, (prompt, output, priority) in enumerate(lengths)
    ]
    return Scheduler(rules, pool), sequences, arrivals


def serve(scheduler, sequences, arrivals, fast_forward):
    steps, position = [], 0
    while position < len(sequences) or scheduler.has_requests:
        while position < len(sequences) and arrivals[position] <= scheduler.tick:
            scheduler.add_request(sequences[position])
            position += 1
        if (step := scheduler.schedule()) is not None:
            steps.append(step)
        next_arrival = arrivals[position] if position < len(sequences) else np.inf
        num_steady_steps = scheduler.num_steady_steps if fast_forward else 0
        for _ in range(num_steady_steps):
            if next_arrival <= scheduler.tick or (step := scheduler.schedule_steady()) is None:
                break
            steps.append(step)
    return steps


def first_difference(ours, theirs):
    """Where two schedules part, in words; None when they are the same."""
    for position, (our_step, their_step) in enumerate(zip(ours, theirs, strict=False)):
        if tuple(our_step) != tuple(their_step):
            return f"step {position}: maitre {our_step}, vLLM {their_step}"
    return None if len(ours) == len(theirs) else f"maitre needs {len(ours)} steps, vLLM {len(theirs)}"


@pytest.mark.parametrize("fast_forward", [False, True], ids=["step-by-step", "fast-forward"])
@pytest.mark.parametrize("scenario", [pytest.param(s, id=name_of(i, s)) for i, s in enumerate(SCENARIOS)])
def test_every_step_and_every_request_is_as_in_vllm(scenario, fast_forward):
    scheduler, sequences, arrivals = server_of(scenario)
    steps = serve(scheduler, sequences, arrivals, fast_forward)

    columns = list(scenario["steps"])
    positions = [Step._fields.index(name) for name in columns]
    ours = [[step[position] for position in positions] for step in steps]
    assert first_difference(ours, list(zip(*scenario["steps"].values(), strict=True))) is None
    for name in FIGURES:
        assert [getattr(s, name) for s in sequences] == scenario[name], name
    assert sorted(scheduler.token_gaps) == [tuple(gap) for gap in scenario["token_gaps"]]
    assert scheduler.pool.num_free == scheduler.rules.num_usable_blocks


def test_the_scenarios_reach_every_switch_in_company_of_every_other():
    def is_on(scenario):
        rules = scenario["rules"]
        flags = ("async_scheduling", "enable_prefix_caching", "priority_policy", "whole_prompt_gate")
        values = ("watermark", "long_prefill_token_threshold")
        return (
            *(rules[name] for name in flags),
            *(rules[name] > 0 for name in values),
            "arrival_tick" in scenario["requests"],
            any(scenario["num_preemptions"]),
        )

    table = np.array([is_on(scenario) for scenario in SCENARIOS])
    for one in range(table.shape[1]):
        for other in range(one):
            assert len(np.unique(table[:, [one, other]], axis=0)) == 4
    cached = [s for s in SCENARIOS if any(s["num_cached_tokens"])]
    assert {s["rules"]["block_size"] for s in cached} == {4, 8, 16, 32}
