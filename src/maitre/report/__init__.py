"""What people see of a study."""

from maitre.report.surface import print_study

__all__ = ["print_study"]
