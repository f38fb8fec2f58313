"""Grids hold only cells that vLLM starts with, and the present one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import UsageError
from maitre.records import Cell, Workload
from maitre.search import auto_grid, classical_grid, product_grid


def names(cells):
    return [str(cell) for cell in cells]


def test_the_classical_grid_is_the_25_runs_that_people_make():
    cells = classical_grid()
    assert len(cells) == len(set(cells)) == 25
    assert (names(cells)[0], names(cells)[-1]) == ("32x4096", "512x65536")


def test_a_grid_is_sorted_and_has_no_cell_twice():
    assert names(product_grid([128, 64, 128], [4096, 2048])) == ["64x2048", "128x2048", "64x4096", "128x4096"]


def test_cells_with_fewer_tokens_than_slots_are_left_out():
    assert names(product_grid([64, 512], [256, 1024])) == ["64x256", "64x1024", "512x1024"]


@pytest.mark.parametrize(("seqs", "tokens"), [([64, 2048], [1024]), ([64], [32, 1024])])
def test_a_row_or_column_that_would_be_empty_is_refused(seqs, tokens):
    with pytest.raises(UsageError, match="must be at least max_num_seqs"):
        product_grid(seqs, tokens)


COUNTS = st.lists(st.integers(1, 5000), min_size=1, max_size=6)


@given(COUNTS, COUNTS)
def test_no_grid_has_a_cell_that_vllm_refuses(seqs, tokens):
    try:
        cells = product_grid(seqs, tokens)
    except UsageError:
        assert max(seqs) > max(tokens) or min(tokens) < min(seqs)
        return
    assert all(cell.max_num_seqs <= cell.max_num_batched_tokens for cell in cells)
    assert {cell.max_num_seqs for cell in cells} == set(seqs)
    assert {cell.max_num_batched_tokens for cell in cells} == set(tokens)


@given(
    prompt=st.integers(1, 30_000),
    output=st.integers(1, 5000),
    num_requests=st.integers(1, 5000),
    kv_tokens=st.integers(16, 5_000_000),
    present=st.tuples(st.integers(1, 4096), st.integers(0, 100_000)),
)
def test_the_automatic_grid_holds_the_present_cell_and_none_that_vllm_refuses(
    prompt, output, num_requests, kv_tokens, present
):
    workload = Workload(
        name="w", source="s",
        prompt_tokens=np.full(num_requests, prompt), output_tokens=np.full(num_requests, output),
    )  # fmt: skip
    here = Cell(max_num_seqs=present[0], max_num_batched_tokens=sum(present))
    cells = auto_grid(workload, kv_tokens, here)
    assert here in cells
    assert len(cells) == len(set(cells)) <= 48
    assert all(cell.max_num_seqs <= cell.max_num_batched_tokens for cell in cells)


def test_the_automatic_grid_is_built_around_what_the_pool_holds():
    workload = Workload(name="w", source="s", prompt_tokens=[500] * 5000, output_tokens=[280] * 5000)
    cells = auto_grid(workload, 128 * 640, Cell(max_num_seqs=256, max_num_batched_tokens=8192))
    assert sorted({cell.max_num_seqs for cell in cells}) == [16, 32, 64, 128, 256]
