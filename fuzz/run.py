"""Fuzz the readers of foreign input: `python fuzz/run.py TARGET --seconds 60`, or `--all`.

Findings go to fuzz-findings/TARGET/: the smallest input of each kind, and its traceback.
"""

from __future__ import annotations

import os

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # before polars: its pool would count as this process's own time

import argparse
import importlib
import pkgutil
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random

from contract import MAX_INPUT_BYTES, Finding, examine

_STATUS = re.compile(r"#(\d+)\s.*cov: (\d+) ft: (\d+)")
_STUCK_S = 60
"""In native code, where the contract's own clock cannot end a run."""
_MAX_RSS_MIB = 4096


def main() -> int:
    """Parse the command line, and do one of the four things."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="", help="a name from --list; with --all, the beginning of some")
    parser.add_argument("--all", action="store_true", help="every target, each in a process of its own")
    parser.add_argument("--list", action="store_true", help="print the targets")
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together (default: 60)")
    parser.add_argument("--jobs", type=int, default=1, help="with --all: processes at a time")
    parser.add_argument("--corpus", type=Path, help="keep what was found here, a folder a target, and go on from it")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--replay", type=Path, help="try one file without instrumentation, and print what happens")
    parser.add_argument("--minimise", type=Path, help="the same, and make the file smaller as long as it fails alike")
    asked = parser.parse_args()
    if asked.all:
        return _fuzz_all(asked)
    if asked.replay or asked.minimise:
        return _replay(asked.target, asked.replay or asked.minimise, shrink=bool(asked.minimise))
    if asked.list or not asked.target:
        print("\n".join(_targets()))
        return 0 if asked.list else 2
    return _fuzz(asked)


def _targets() -> dict[str, object]:
    return dict(importlib.import_module("targets").TARGETS)


def _fuzz(asked: argparse.Namespace) -> int:
    """One target until the time is over. Never returns: libFuzzer ends the process, with 0 unless native code died."""
    import atheris

    atheris.enabled_hooks.add("str")  # not RegEx: its patterns take no start and no end
    with atheris.instrument_imports(include=["maitre"]):  # what was imported before is not seen
        _import_all()
        fuzzed = _targets()[asked.target]
    seeds = importlib.import_module("seeds")
    begin = [*seeds.collect(fuzzed.places), *fuzzed.examples]
    words = seeds.words_in(begin)
    findings = asked.findings / asked.target
    findings.mkdir(parents=True, exist_ok=True)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.4:
            return atheris.Mutate(data, max_size)
        return fuzzed.mutation(data, random.choice(begin), words, random)[:max_size]

    def try_one(data: bytes) -> None:
        if finding := examine(fuzzed.target, data):
            _keep(finding, data, findings)

    corpus = asked.corpus / asked.target if asked.corpus else Path(tempfile.mkdtemp(prefix="maitre-corpus-"))
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(begin):
        (corpus / f"seed-{number:04d}").write_bytes(seed)
    for seed in begin[:5]:
        try_one(seed)  # what is imported or cached at the first call counts for no input
    atheris.Setup(
        [
            sys.argv[0], str(corpus), f"-max_len={MAX_INPUT_BYTES}", f"-max_total_time={max(1, int(asked.seconds))}",
            f"-timeout={_STUCK_S}", f"-rss_limit_mb={_MAX_RSS_MIB}", f"-artifact_prefix={findings}/native-",
            "-print_final_stats=1", "-reload=0", "-len_control=20",
        ],
        try_one,
        custom_mutator=mutate,
    )  # fmt: skip
    atheris.Fuzz()
    return 0


def _import_all() -> None:
    """All of maitre, also what its verbs import when they are called; but not what needs vLLM or an extra."""
    package = importlib.import_module("maitre")
    for module in pkgutil.walk_packages(package.__path__, "maitre."):
        with suppress(ImportError):
            importlib.import_module(module.name)


def _keep(finding: Finding, data: bytes, folder: Path) -> None:
    """The smallest input of each kind."""
    path = folder / finding.signature
    if not path.exists() or len(data) < path.stat().st_size:
        path.write_bytes(data)
        path.with_name(f"{path.name}.txt").write_text(finding.report, "utf-8", "backslashreplace")


def _replay(name: str, path: Path, *, shrink: bool) -> int:
    target, data = _targets()[name].target, path.read_bytes()
    finding = examine(target, data)
    if finding is None:
        print(f"{path}: kept its promises")
        return 0
    if shrink:
        data = _smaller(target, data, finding.signature)
        path.write_bytes(data)
    print(f"{finding.report}\n{finding.signature}: {len(data)} bytes: {data[:300]!r}")
    return 1


def _smaller(target: object, data: bytes, signature: str) -> bytes:
    """Pieces of half the length and less left out, as long as it fails alike (Zeller's ddmin, simplified)."""
    size = len(data) // 2
    while size:
        start = 0
        while start < len(data):
            shorter = data[:start] + data[start + size :]
            found = examine(target, shorter)
            if found is not None and found.signature == signature:
                data = shorter
            else:
                start += size
        size //= 2
    return data


def _fuzz_all(asked: argparse.Namespace) -> int:
    names = [name for name in _targets() if name.startswith(asked.target)]
    seconds = asked.seconds / -(-len(names) // asked.jobs)
    asked.findings.mkdir(parents=True, exist_ok=True)
    print(f"{'target':<22}{'executions':>12}{'edges':>8}{'features':>10}  findings", flush=True)
    with ThreadPoolExecutor(asked.jobs) as pool:
        for row in pool.map(lambda name: _fuzz_apart(name, seconds, asked), names):
            print(row, flush=True)
    return 1 if any(asked.findings.glob("*/*")) else 0


def _fuzz_apart(name: str, seconds: float, asked: argparse.Namespace) -> str:
    """One target in processes of their own: a new one when native code ends the last before its time. Returns a row."""
    folder, end = asked.findings / name, time.monotonic() + seconds
    words = [sys.executable, __file__, name, "--findings", str(asked.findings)]
    words += ["--corpus", str(asked.corpus)] if asked.corpus else []
    logs = []
    while (left := end - time.monotonic()) > 1:
        logs.append(asked.findings / f"{name}.{len(logs)}.log")
        with logs[-1].open("wb") as log:
            subprocess.run([*words, "--seconds", str(left)], stdout=log, stderr=log, check=False)
    last = [(_STATUS.findall(log.read_text("utf-8", "replace")) or [("0", "0", "0")])[-1] for log in logs]
    executions, edges, features = sum(int(one[0]) for one in last), last[-1][1], last[-1][2]
    found = sorted(path.name for path in folder.glob("*") if path.suffix != ".txt")
    return f"{name:<22}{executions:>12,}{edges:>8}{features:>10}  {' '.join(found)}"


if __name__ == "__main__":
    sys.exit(main())
