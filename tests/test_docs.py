"""The docs show what the verbs print: every console block with a `maitre` command is run, and compared line by line.

A line `…` in a block stands for any lines. MAITRE_UPDATE_DOCS=1 writes what is printed into the blocks instead.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from maitre.cli import app

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
VERBS = sorted(name for name in app if not name.startswith("-"))

CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TIME_OF_A_STUDY = re.compile(r"(maitre-studies/\S+)-\d{8}-\d{6}(-\d+)?")


class Example(NamedTuple):
    """One command of a console block, and what the page says that it prints."""

    page: Path
    line: int
    command: str
    output: tuple[str, ...]

    def __str__(self):
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


def examples(page):
    """All commands of a page that run maitre."""
    text = page.read_text("utf-8")
    for block in CONSOLE.finditer(text):
        first = text[: block.start(1)].count("\n") + 1
        lines = block[1].splitlines()
        prompts = [i for i, line in enumerate(lines) if line.startswith("$ ")]
        for start, end in zip(prompts, [*prompts[1:], len(lines)], strict=True):
            if re.search(r"\bmaitre [a-z-]", lines[start]):
                yield Example(page, first + start, lines[start][2:], tuple(lines[start + 1 : end]))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a command in a copy of what the pages speak of; returns the lines of stdout and stderr."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("examples", "docs"):
        shutil.copytree(REPOSITORY / name, folder / name)
    (folder / "tests").symlink_to(REPOSITORY / "tests")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    inherited = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    surroundings = inherited | {"PATH": programs, "COLUMNS": "100", "NO_COLOR": "1", "TZ": "UTC"}

    @cache
    def call(command):
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=surroundings, text=True, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return tuple(normalised(line) for line in done.stdout.splitlines())

    return call


def normalised(line):
    """Without the spaces that nobody sees at the end, and with one date for all studies."""
    return TIME_OF_A_STUDY.sub(r"\1-20260504-090000", line).rstrip()


def fits(printed, shown):
    """Whether the printed lines are those shown, with `…` for any lines."""
    pattern = "".join(r"(?:.*\n)*?" if line == "…" else re.escape(normalised(line)) + "\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


def test_an_ellipsis_stands_for_any_lines():
    assert fits(["a", "b", "c"], ["a", "…", "c"])
    assert fits(["a", "c"], ["a", "…", "c"])
    assert not fits(["a", "b"], ["a"])
    assert not fits(["a", "b"], ["…", "a"])


@pytest.mark.parametrize("example", [e for page in PAGES for e in examples(page)], ids=str)
def test_a_command_prints_what_the_page_shows(run, example):
    printed = run(example.command)
    if os.environ.get("MAITRE_UPDATE_DOCS") and not fits(printed, example.output):
        rewrite(example, printed)
        return
    assert fits(printed, example.output), "\n".join(["the command prints", *printed])


def rewrite(example, printed):
    """Put what is printed into the page; a block with one `…` keeps as many lines before and behind it."""
    shown = list(printed)
    if example.output.count("…") == 1:
        before = example.output.index("…")
        behind = len(example.output) - before - 1
        shown = [*printed[:before], "…", *printed[len(printed) - behind :]]
    old = "".join(f"{line}\n" for line in (f"$ {example.command}", *example.output))
    new = "".join(f"{line}\n" for line in (f"$ {example.command}", *shown))
    text = example.page.read_text("utf-8")
    assert text.count(old) == 1
    example.page.write_text(text.replace(old, new), "utf-8")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_page_with_an_example_and_a_place_in_the_readme(verb):
    page = REPOSITORY / "docs" / f"{verb}.md"
    assert f"maitre {verb}" in page.read_text("utf-8").splitlines()[0]
    assert any(re.search(rf"\bmaitre {verb}\b", example.command) for example in examples(page))
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    assert f"`maitre {verb}`" in readme
    assert f"(docs/{verb}.md)" in readme


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target
