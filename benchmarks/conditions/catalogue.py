"""All families of conditions, and a sample of them drawn from one seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from conditions.families import STEADY
from conditions.hard import HARD, DrawCondition, of_one_server
from conditions.story import Condition

FAMILIES: dict[str, DrawCondition] = {name: of_one_server(draw) for name, draw in STEADY.items()} | HARD
MAX_ATTEMPTS = 500
"""Draws of one condition whose truth did not hold; most of them are given up before anything is simulated."""


def draw_condition(family: str, number: int, seed: int = 0) -> Condition:
    """One condition of a family; the same seed gives the same one.

    Args:
        family: of `FAMILIES`.
        number: which of the family, ≥ 0.
        seed: of the whole sample, ≥ 0.

    Raises:
        RuntimeError: no draw had a truth that holds.
    """
    generator = np.random.default_rng([seed, number, *family.encode()])
    for _ in range(MAX_ATTEMPTS):
        condition = FAMILIES[family](generator, f"{family}-{number}")
        if condition is not None:
            return condition
    raise RuntimeError(f"{family} {number}: no draw of {MAX_ATTEMPTS} is what it should be")


def draw_conditions(num: int, seed: int = 0, families: Sequence[str] = tuple(FAMILIES)) -> Iterator[Condition]:
    """So many conditions, the families taking turns."""
    for i in range(num):
        number, place = divmod(i, len(families))
        yield draw_condition(families[place], number, seed)
