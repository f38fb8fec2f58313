"""`maitre reference`: list the reference workloads."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter


def reference(*, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """List the reference workloads: their lengths, and the rule of thumb's setting for each.

    Parameters
    ----------
    json
        Print the stored records, one list.
    """
    from maitre.workload import REFERENCES

    if json:
        from json import dumps

        print(dumps([profile.model_dump(mode="json") for profile in REFERENCES.values()], indent=2))
        return 0
    _print_table()
    return 0


def _print_table() -> None:
    from rich.console import Console
    from rich.table import Table

    from maitre.workload import REFERENCES

    table = Table("name", box=None, pad_edge=False)
    for heading in ("prompt p50", "output p50", "max_num_seqs", "max_num_batched_tokens"):
        table.add_column(heading, justify="right")
    for profile in REFERENCES.values():
        lengths, cell = profile.lengths, profile.cell
        figures = (lengths.prompt_median, lengths.output_median, cell.max_num_seqs, cell.max_num_batched_tokens)
        table.add_row(profile.name, *(f"{figure:g}" for figure in figures))
    console = Console(highlight=False)
    console.print(table)
    console.print("Use one with --reference NAME. The settings are a rule of thumb,")
    console.print("made for no GPU or model in particular.")
