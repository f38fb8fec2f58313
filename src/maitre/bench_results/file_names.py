"""Dials and load in the name of a file or of its folder, as sweeps and people write them."""

from __future__ import annotations

import re
from pathlib import Path

_PATTERNS = {
    "max_num_seqs": r"max[-_ ]?num[-_ ]?seqs?|mns|num[-_]?seqs|seqs",
    "max_num_batched_tokens": r"max[-_ ]?num[-_ ]?batched[-_ ]?tokens|mnbt|mbt|batched[-_]?tokens",
    "tensor_parallel_size": r"tensor[-_ ]?parallel[-_ ]?size|tp",
    "concurrency": r"max[-_ ]?concurrency|concurrency|conc",
}
_REGEXES = {
    name: re.compile(rf"(?<![a-z])(?:{spellings})[-_= ]?(\d+k?)(?![a-z0-9])", re.IGNORECASE)
    for name, spellings in _PATTERNS.items()
}
_AUTO_TUNE_LOG = re.compile(r"(?:bm|vllm)_log_(\d+)_(\d+)(?:_|\.|$)")


def settings_in_name(path: str) -> dict[str, str]:
    """Settings that a path names, by vLLM's names: `SERVE--max_num_seqs=32-.../run=0.json`, `mns256_mnbt8k.txt`.

    Only the file and the folder that holds it are read; the file's name counts more.
    """
    found: dict[str, str] = {}
    for part in (Path(path).parent.name, Path(path).name):
        if match := _AUTO_TUNE_LOG.search(part):
            found |= {"max_num_seqs": match[1], "max_num_batched_tokens": match[2]}
        for name, regex in _REGEXES.items():
            if match := regex.search(part):
                found[name] = match[1]
    return found
