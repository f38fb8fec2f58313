"""Which cells to ask for, and which one to recommend."""

from maitre.search.findings import find_doubts
from maitre.search.grid import auto_grid, classical_grid, product_grid
from maitre.search.recommend import recommend

__all__ = ["auto_grid", "classical_grid", "find_doubts", "product_grid", "recommend"]
