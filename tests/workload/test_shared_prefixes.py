import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maitre.errors import InputError
from maitre.records import Workload
from maitre.workload import load_workload
from maitre.workload.prefixes import infer_block_tokens, shared_prefix_share


def share(prompts: list[int], hashes: list[list[int]], block_tokens: int = 10) -> float | None:
    workload = Workload(
        name="t",
        source="t",
        prompt_tokens=prompts,
        output_tokens=[1] * len(prompts),
        prefix_hashes=hashes,
        prefix_block_tokens=block_tokens,
    )
    return shared_prefix_share(workload)


def test_a_prefix_is_shared_as_far_as_the_hashes_agree_from_the_start() -> None:
    assert share([20, 20], [[1, 2], [1, 3]]) == 10 / 40
    assert share([20, 20], [[1, 2], [3, 2]]) == 0
    assert share([30, 30, 20], [[1, 2, 3], [1, 5, 3], [1, 5]]) == (10 + 19) / 80


def test_the_last_prompt_token_is_always_computed() -> None:
    assert share([15, 15], [[1, 2], [1, 2]]) == 14 / 30


def test_a_workload_without_hashes_has_no_share() -> None:
    assert shared_prefix_share(load_workload("fixed:10:10")) is None


def test_the_chunk_size_is_told_by_the_number_of_hashes() -> None:
    prompts = np.array([1000, 40, 512])
    assert infer_block_tokens([(1, 2), (1,), (1,)], prompts) == 512
    assert infer_block_tokens([(0,) * 63, (0,) * 3, (0,) * 32], prompts) == 16
    assert infer_block_tokens([(1,), (1, 2, 3), ()], prompts) is None


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_mooncake_rows_keep_their_hashes_in_order_of_arrival(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 2000, "input_length": 600, "output_length": 3, "hash_ids": [0, 2]},
        {"timestamp": 0, "input_length": 512, "output_length": 0, "hash_ids": [9]},
        {"timestamp": 500, "input_length": 700, "output_length": 4, "hash_ids": [0, 1]},
    ]
    workload = load_workload(write(tmp_path / "t.jsonl", *rows))
    assert workload.prefix_hashes == ((0, 1), (0, 2))
    assert workload.prefix_block_tokens == 512
    assert workload.arrival_s is not None
    assert workload.arrival_s.tolist() == [0, 1.5]
    assert workload.num_dropped == {"output_tokens zero": 1}


def test_a_row_that_holds_no_hashes_is_named(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 5, "output_length": 3}
    path = write(tmp_path / "t.jsonl", row | {"hash_ids": [0]}, row | {"hash_ids": [0.5]})
    with pytest.raises(InputError, match="column 'hash_ids', row 2"):
        load_workload(path)
