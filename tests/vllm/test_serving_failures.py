"""A server that had started and then failed: one record for each life, by the line that says most."""

import pytest

from maitre.vllm.serving_failures import FailureReader

READY = "Application startup complete."
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace for the root cause."
DUMP = "Dumping input data for V1 LLM engine (v0.10.1) with config: model='m'"
BEGIN = "Initializing a V1 LLM engine (v0.10.1) with config: model='m'"


def failures(*messages):
    reader = FailureReader()
    for message in messages:
        reader.add(message)
    return reader.failures()


def codes(*messages):
    return [failure.code for failure in failures(*messages)]


CASES = {
    "out of memory": ([READY, MEMORY], ["out-of-memory"]),
    "what follows from it is not another failure": ([READY, DUMP, MEMORY, DEAD], ["out-of-memory"]),
    "the engine died, nothing says why": ([READY, DEAD], ["engine-died"]),
    "V0's background loop": ([READY, "Background loop has errored already."], ["engine-died"]),
    "a step that does not end": ([READY, "TimeoutError: RPC call to execute_model timed out."], ["step-timed-out"]),
    "two lives": ([READY, MEMORY, DEAD, BEGIN, READY, DEAD], ["out-of-memory", "engine-died"]),
    "at the start": ([BEGIN, MEMORY], []),
    "at the second start": ([READY, BEGIN, MEMORY], []),
    "none": ([BEGIN, READY, "Engine 000: Avg prompt throughput: 1.0 tokens/s"], []),
    "stopped by somebody": ([READY, "Shutting down", "Engine core proc EngineCore died unexpectedly"], []),
    "ready by its statistics": (["Avg prompt throughput: 1.0 tokens/s", MEMORY], ["out-of-memory"]),
}


@pytest.mark.parametrize(("messages", "expected"), CASES.values(), ids=CASES)
def test_failures_under_load(messages, expected):
    assert codes(*messages) == expected


def test_the_message_is_what_a_person_reads():
    (failure,) = failures(READY, DUMP, "  " + MEMORY + " x" * 5000, DEAD)
    assert failure.message.startswith(MEMORY)
    assert len(failure.message) <= 300
    assert failure.num_lines == 3
