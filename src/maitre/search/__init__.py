"""Which cells to ask for, and which one to recommend."""

from maitre.search.challenge import Challenge
from maitre.search.findings import find_doubts
from maitre.search.grid import auto_grid, classical_grid, product_grid
from maitre.search.recommend import recommend
from maitre.search.strategy import Ask, Strategy, Told

__all__ = [
    "Ask",
    "Challenge",
    "Strategy",
    "Told",
    "auto_grid",
    "classical_grid",
    "find_doubts",
    "product_grid",
    "recommend",
]
