"""A client that was busy or late says so."""

import asyncio
import time

import pytest

from maitre.trial.load.health import ClientHealth, HealthMeter

WELL = ClientHealth(cpu_share=0.5, lag_p50_s=0.001, lag_p99_s=0.002, lag_max_s=0.2)


def test_a_client_with_room_to_spare_is_not_spoiled():
    assert not WELL.is_spoiled
    assert WELL.spoiled_by == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lag_p99_s": 0.006}, "its event loop was 6 ms late (p99; 5 ms is the limit)"),
        ({"cpu_share": 0.95}, "it used 95% of a core (90% is the limit)"),
    ],
)
def test_a_late_or_busy_client_is_spoiled_and_says_why(change, reason):
    health = WELL.model_copy(update=change)
    assert health.is_spoiled
    assert health.spoiled_by == f"the load generator could not keep up: {reason}"


def test_every_tick_that_a_standing_loop_missed_counts():
    times = iter([0.0, 0.1, 0.1, 0.1])  # the loop stood still for 100 ms
    meter = HealthMeter(clock=lambda: next(times), cpu_clock=lambda: 0.0)
    health = meter.health()
    assert health.lag_p50_s == pytest.approx(0.045)
    assert health.lag_max_s == pytest.approx(0.09)


def test_a_blocked_event_loop_is_seen():
    async def block():
        meter = HealthMeter()
        ticking = asyncio.create_task(meter.tick())
        for _ in range(3):
            await asyncio.sleep(0.02)
            time.sleep(0.1)  # noqa: ASYNC251 - what must not happen
        ticking.cancel()
        return meter.health()

    health = asyncio.run(block())
    assert health.is_spoiled
    assert health.lag_max_s > 0.05


def test_several_processes_are_as_well_as_the_worst_of_them():
    late = WELL.model_copy(update={"lag_p99_s": 0.1, "cpu_share": 0.1})
    both = ClientHealth.worst_of([WELL, late])
    assert (both.num_processes, both.cpu_share, both.lag_p99_s) == (2, 0.5, 0.1)
