"""How many sequences of the user's lengths a pool holds: the lengths, the counts, and the words for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from maitre.cli.workload_options import WorkloadOptions
    from maitre.records import KvBudget, ServerConfig

    Lengths = tuple[NDArray[np.int64], NDArray[np.int64]]
    Fit = dict[str, float | None]

KEYS = ("max_seqs", "max_seqs_full_length", "max_seqs_at_max_model_len")


def given_lengths(options: WorkloadOptions, prompt_tokens: int | None, output_tokens: int | None) -> Lengths | None:
    """Prompt and output lengths to count sequences at, or None when the command line names none.

    Raises:
        UsageError: half a length, or two sources of them.
    """
    import numpy as np

    from maitre.errors import UsageError

    named = options.workload is not None or options.reference is not None
    if prompt_tokens is None and output_tokens is None:
        if not named:
            return None
        traffic = options.load()
        return traffic.prompt_tokens, traffic.output_tokens
    if named or prompt_tokens is None or output_tokens is None:
        raise UsageError(
            "give either a workload or both --prompt-tokens and --output-tokens",
            "--prompt-tokens 512 --output-tokens 256",
        )
    return np.array([prompt_tokens]), np.array([output_tokens])


def count_fitting(pool: KvBudget | None, lengths: Lengths | None, max_model_len: int | None, engines: int = 1) -> Fit:
    """Sequences that fit, by the keys of the JSON output; None where a length or the pool is not known.

    Args:
        pool: of one engine.
        lengths: of the user's requests.
        max_model_len: the longest of the server, in tokens.
        engines: data-parallel engines, each with such a pool.
    """
    from maitre.kv_budget import max_seqs, max_seqs_of_length

    fit: Fit = dict.fromkeys(KEYS)
    if pool is not None and lengths is not None:
        found = max_seqs(pool, *lengths)
        counts = {"max_seqs": found.mean_footprint, "max_seqs_full_length": found.full_length}
        fit |= {key: int(count) * engines for key, count in counts.items()}
    if pool is not None and max_model_len:
        fit["max_seqs_at_max_model_len"] = round(max_seqs_of_length(pool, max_model_len) * engines, 2)
    return fit


def fit_lines(config: ServerConfig | None, fit: Fit, lengths: Lengths | None) -> list[str]:
    """How many sequences fit, in words, and what that means for max_num_seqs."""
    lines = []
    if lengths is not None and fit["max_seqs"] is not None:
        means = f"{lengths[0].mean():,.0f} prompt and {lengths[1].mean():,.0f} output tokens"
        lines.append(f"at {means} (mean): [bold]{fit['max_seqs']:,} sequences[/bold] run at once")
        lines.append(f"  {fit['max_seqs_full_length']:,} if all of them stand at their last token")
    if fit["max_seqs_at_max_model_len"] is not None:
        length = f" of {config.max_model_len:,}" if config else ""
        lines.append(f"  {fit['max_seqs_at_max_model_len']:,} if all of them have max_model_len{length}")
    if config is None or fit["max_seqs"] is None:
        return lines
    cell = f"max_num_seqs {config.max_num_seqs:,} and max_num_batched_tokens {config.max_num_batched_tokens:,}"
    verdict = "more sequences than fit: the pool binds first, and vLLM preempts"
    if config.max_num_seqs <= fit["max_seqs"]:
        verdict = "the pool has room for all of them"
    return [*lines, f"with {cell}: {verdict}"]
