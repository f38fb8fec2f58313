"""The fuzzer's targets: each one's own seeds keep the contract, and the contract notices what breaks it."""

import importlib
import json
import re
import sys
from pathlib import Path
from random import Random

import pytest

from maitre.errors import InputError

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
NO_LIMIT_S = 1e6
NUM_SEEDS = 10
NUM_SEEDS_OF_A_VERB = 3
"""Of targets that run a whole verb: a tenth of a second each."""
MODULES = tuple(path.stem for path in FUZZ.glob("*.py") if path.stem != "run")


@pytest.fixture(scope="module")
def fuzz():
    """The modules of the folder, by name; they are scripts, no package."""
    sys.path.insert(0, str(FUZZ))
    yield {name: importlib.import_module(name) for name in MODULES}
    sys.path.remove(str(FUZZ))
    for name in MODULES:
        del sys.modules[name]


def names():
    """The targets, without importing what they read."""
    return re.findall(r'^    "([a-z-]+)": Fuzzed\(', (FUZZ / "targets.py").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", names())
def test_what_the_tests_read_keeps_the_contract(fuzz, name):
    target = fuzz["targets"].TARGETS[name]
    seeds = [*target.examples, *fuzz["seeds"].collect(target.places)]
    assert seeds
    most = NUM_SEEDS_OF_A_VERB if re.search("printed|verify", name) else NUM_SEEDS
    for seed in Random(0).sample(seeds, min(len(seeds), most)):
        assert fuzz["contract"].examine(target.target, seed, NO_LIMIT_S) is None


def test_every_target_is_tried(fuzz):
    assert names() == [*fuzz["targets"].TARGETS]


def raise_it(error):
    def target(_):
        raise error

    return target


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InputError("a fault", "a hint"), None),
        (InputError("a fault"), "no-hint"),
        (TypeError("a fault"), "TypeError"),
        (RuntimeWarning("a fault"), "RuntimeWarning"),
        (SystemExit(1), "SystemExit"),
    ],
)
def test_only_our_own_errors_with_a_hint_may_come_out(fuzz, error, kind):
    finding = fuzz["contract"].examine(raise_it(error), b"", NO_LIMIT_S)
    assert finding is None if kind is None else finding.signature.startswith(f"{kind}-")


def test_an_endless_loop_ends_as_a_finding(fuzz):
    def loop(_):
        while True:
            pass

    assert "more than 0.01 s" in fuzz["contract"].examine(loop, b"", 0.01).report


@pytest.mark.parametrize(
    ("mutation", "seed"),
    [
        ("mutate_json", b'{"a": [1, {"b": "x"}]}'),
        ("splice_lines", b"a line of 3 words\nand 17 more\n"),
        ("mutate_protobuf", b"\x0a\x06\x0a\x04\x08\x96\x01\x00"),
    ],
)
def test_mutations_change_the_content_and_are_the_same_for_a_seed(fuzz, mutation, seed):
    mutate = getattr(fuzz["mutate"], mutation)
    changed = [mutate(seed, seed, [b"word"], Random(number)) for number in range(40)]
    assert len(set(changed)) > 10
    assert changed == [mutate(seed, seed, [b"word"], Random(number)) for number in range(40)]


def test_a_changed_json_text_is_still_json(fuzz):
    seed = b'{"a": [1, {"b": "x"}], "c": null}'
    for number in range(200):
        changed = fuzz["mutate"].mutate_json(seed, seed, [b"word"], Random(number))
        assert json.loads(changed) is not None
