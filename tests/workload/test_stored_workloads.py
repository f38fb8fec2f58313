import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import InputError, SystemFailure, UsageError
from maitre.records import Workload
from maitre.workload import Columns, load_workload, save_workload

LENGTHS = st.integers(1, 10**6)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    n = draw(st.integers(1, 20))

    def column(of: st.SearchStrategy[Any]) -> Any:
        return draw(st.lists(of, min_size=n, max_size=n))

    seconds = st.floats(0, 1e6)
    hashes = draw(st.none() | st.lists(st.lists(st.integers(0, 99)), min_size=n, max_size=n))
    return Workload(
        name=draw(st.text()),
        source=draw(st.text()),
        prompt_tokens=column(LENGTHS),
        output_tokens=column(LENGTHS),
        arrival_s=draw(st.none() | st.just(np.sort(column(seconds)))),
        latency_s=draw(st.none() | st.just(column(seconds))),
        prefix_hashes=hashes,
        prefix_block_tokens=None if hashes is None else 512,
        num_dropped=draw(st.dictionaries(st.text(), st.integers(1, 99))),
    )


@given(workload=workloads())
def test_what_is_stored_is_loaded_again(tmp_path_factory: pytest.TempPathFactory, workload: Workload) -> None:
    path = tmp_path_factory.mktemp("stored") / "w.json"
    save_workload(workload, path)
    assert load_workload(str(path)).model_dump() == workload.model_dump()
    assert [file.name for file in path.parent.iterdir()] == ["w.json"]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    save_workload(load_workload("fixed:512:256", num_requests=10), tmp_path / "w.json")
    return tmp_path / "w.json"


def test_a_stored_workload_can_be_cut_down(stored: Path) -> None:
    workload = load_workload(str(stored), num_requests=4)
    assert workload.num_requests == 4
    assert "4 of 10 requests" in workload.source


def test_a_stored_workload_has_no_columns(stored: Path) -> None:
    with pytest.raises(UsageError, match="no columns"):
        load_workload(str(stored), columns=Columns(prompt="x"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": "maitre-workload-9"}, "holds maitre-workload-9"),
        ({"schema_version": "maitre-study-1"}, "holds maitre-study-1"),
        ({"prompt_tokens": [1, 2]}, "10 entries, prompt_tokens has 2"),
        ({"prompt_tokens": {"a": 1}}, "int"),
        ({"output_tokens": [0] * 10}, "at least one"),
        ({"colour": "red"}, "field 'colour'"),
        ({"prompt_tokens": []}, "prompt_tokens has 0"),
        ({"prompt_tokens": [1] * 9 + [2**53 + 1]}, "field 'prompt_tokens': more than 2,147,483,647"),
        ({"output_tokens": [2**31] * 10}, "field 'output_tokens'"),
        ({"arrival_s": [0] * 9 + [1e308]}, "field 'arrival_s'"),
    ],
)
def test_a_wrong_stored_workload_is_named(stored: Path, change: dict[str, Any], message: str) -> None:
    stored.write_text(json.dumps(json.loads(stored.read_text()) | change))
    with pytest.raises(InputError, match=r"w\.json") as caught:
        load_workload(str(stored))
    assert message in str(caught.value)


def test_a_truncated_stored_workload_is_an_input_error(stored: Path) -> None:
    stored.write_text(stored.read_text()[:-20])
    with pytest.raises(InputError, match="truncated"):
        load_workload(str(stored))


def test_storing_into_a_folder_that_is_not_there_is_the_disk_s_failure(stored: Path, tmp_path: Path) -> None:
    for target in (tmp_path / "missing" / "w.json", tmp_path):
        with pytest.raises(SystemFailure, match="cannot be written"):
            save_workload(load_workload(str(stored)), target)


def test_storing_through_a_symbolic_link_keeps_the_link(stored: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(stored)
    save_workload(load_workload("fixed:1:1", num_requests=3), link)
    assert link.is_symlink()
    assert load_workload(str(stored)).num_requests == 3


def test_half_a_character_in_a_name_is_replaced_so_that_it_can_be_stored_again(stored: Path) -> None:
    stored.write_text(json.dumps(json.loads(stored.read_text()) | {"name": "a\ud800"}))
    workload = load_workload(str(stored))
    save_workload(workload, stored)
    assert load_workload(str(stored)).name == workload.name == "a\ufffd"
