"""A workload as a dataset that `vllm bench throughput` reads, with every request's own prompt and output length.

The benchmark takes text, and counts in tokens of the model's tokenizer. So it is given another one (`--tokenizer`), in
which every word is one token and its number the token's id: lengths are then exact, whatever the model, and the
prompts' token ids are ours. Outputs are exact because the benchmark always ignores the end-of-sequence token.

Of its datasets (`vllm/benchmarks/datasets`, 0.4 to 0.33) two keep each request's own pair of lengths:
sharegpt   the prompts' text is ours, shared prefixes included; requests outside of the limits below are dropped
burstgpt   any length; the benchmark makes the text itself, and needs pandas (`pip install 'vllm[bench]'`)
random has one length for all, or an interval around it, and from 0.14 to 0.33 ignores --input-len and --output-len.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from maitre.errors import SystemFailure
from maitre.records import Workload
from maitre.trial.load import make_prompts

MIN_TOKENS, MAX_PROMPT_TOKENS, MAX_TOKENS = 4, 1024, 2048
"""Requests that sharegpt keeps: at least 4 prompt and 4 output tokens, at most 1,024 prompt tokens and 2,048 together
(`is_valid_sequence` in `benchmarks/datasets`; `sample_requests` of the script)."""

_COLUMNS = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
_PADDING = "t0"


@dataclass(frozen=True, slots=True)
class BenchDataset:
    """Where the files are, and what they cannot keep."""

    name: Literal["sharegpt", "burstgpt"]
    path: Path
    tokenizer_path: Path
    notes: tuple[str, ...]
    """In words, what of the workload is lost."""

    def flags(self, num_requests: int, *, is_script: bool) -> dict[str, str | None]:
        """The benchmark's flags.

        Args:
            num_requests: of the workload.
            is_script: for the script, whose only dataset flag up to 0.7 was --dataset.
        """
        if is_script and self.name == "sharegpt":
            where: dict[str, str | None] = {"--dataset": str(self.path)}
        else:
            where = {"--dataset-name": self.name, "--dataset-path": str(self.path)}
        more: dict[str, str | None] = {} if is_script else {"--disable-detokenize": None}
        return {"--tokenizer": str(self.tokenizer_path), **where, "--num-prompts": str(num_requests)} | more


def write_dataset(workload: Workload, folder: Path, vocab_size: int, seed: int) -> BenchDataset:
    """Write the workload and its tokenizer into a folder, which is made.

    Args:
        workload: the traffic.
        folder: where to.
        vocab_size: tokens of the model's vocabulary.
        seed: decides the prompts' content.

    Raises:
        SystemFailure: the disk refuses.
    """
    is_short = _is_kept_by_sharegpt(workload)
    name: Literal["sharegpt", "burstgpt"] = "sharegpt" if is_short else "burstgpt"
    path = (folder / f"{name}.{'json' if is_short else 'csv'}").resolve()
    tokenizer_path = (folder / "tokenizer").resolve()
    content = _conversations(workload, vocab_size, seed) if is_short else _token_counts(workload)
    try:
        tokenizer_path.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")
        (tokenizer_path / "tokenizer.json").write_text(_tokenizer(vocab_size), "utf-8")
        (tokenizer_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', "utf-8")
    except OSError as error:
        raise SystemFailure(f"{folder}: cannot be written ({error.strerror})", "check permissions and disk") from error
    return BenchDataset(name, path, tokenizer_path, _notes(workload, is_short=is_short))


def _is_kept_by_sharegpt(workload: Workload) -> bool:
    prompts, outputs = workload.prompt_tokens, workload.output_tokens
    is_long_enough = min(prompts.min(), outputs.min()) >= MIN_TOKENS
    return bool(is_long_enough and prompts.max() <= MAX_PROMPT_TOKENS and (prompts + outputs).max() <= MAX_TOKENS)


def _notes(workload: Workload, *, is_short: bool) -> tuple[str, ...]:
    notes = []
    if not is_short:
        notes.append(
            f"some requests are outside of what the benchmark's sharegpt dataset keeps ({MIN_TOKENS} to "
            f"{MAX_PROMPT_TOKENS:,} prompt tokens, {MAX_TOKENS:,} in all), so burstgpt is used, which needs pandas in "
            "vLLM's environment"
        )
    if not is_short and workload.prefix_hashes is not None:
        notes.append("burstgpt cannot share prefixes: every prompt is computed in full")
    if workload.arrival_s is not None:
        notes.append("vllm bench throughput has no arrival times: all requests are there at once")
    return tuple(notes)


def _conversations(workload: Workload, vocab_size: int, seed: int) -> str:
    """ShareGPT's JSON: the first turn is the prompt, the second one as long as the output."""
    prompts = make_prompts(workload, vocab_size, seed, run=0)
    rows = []
    for prompt, num_output in zip(prompts, workload.output_tokens.tolist(), strict=True):
        answer = " ".join([_PADDING] * num_output)
        turns = [
            {"from": "human", "value": " ".join(f"t{token}" for token in prompt)},
            {"from": "gpt", "value": answer},
        ]
        rows.append({"conversations": turns})
    return json.dumps(rows)


def _token_counts(workload: Workload) -> str:
    """BurstGPT's CSV; only rows of GPT-4 are read."""
    lengths = np.stack([workload.prompt_tokens, workload.output_tokens], axis=1).tolist()
    rows = [f"{at},GPT-4,{prompt},{output},{prompt + output},API log" for at, (prompt, output) in enumerate(lengths)]
    return "\n".join([_COLUMNS, *rows, ""])


def _tokenizer(vocab_size: int) -> str:
    """A `tokenizer.json` (Hugging Face tokenizers) in which the word t17 is token 17."""
    words = {f"t{token}": token for token in range(vocab_size)}
    tokenizer: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": _PADDING},
    }  # fmt: skip
    return json.dumps(tokenizer)
