"""The answer of `maitre verify` as CI systems read it: a JUnit report, or GitHub's annotations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from maitre.verify.verification import Verification

_LEVELS = {"yes": "notice", "cannot-tell": "warning", "no": "error"}


def write_junit(answer: Verification, path: Path) -> None:
    """One test case for the verdict and one for each confirmation; what cannot be told is skipped, not passed.

    Raises:
        SystemFailure: the file cannot be written.
    """
    from maitre.errors import SystemFailure
    from maitre.verify.verdict import answer_of

    verdict = str(answer_of(answer.verdict))
    detail = "\n".join(f"{one.code}: {one.message}\n  {one.remedy}" for one in answer.findings)
    cases = [
        ("verdict", verdict, f"{answer.verdict}: {answer.summary}", detail),
        *((str(one.name), str(one.answer), one.message, one.message) for one in answer.confirmations),
    ]
    suite = ET.Element(
        "testsuite",
        name="maitre verify",
        tests=str(len(cases)),
        failures=str(sum(case[1] == "no" for case in cases)),
        skipped=str(sum(case[1] == "cannot-tell" for case in cases)),
        errors="0",
    )
    for name, told, message, text in cases:
        case = ET.SubElement(suite, "testcase", classname="maitre.verify", name=name)
        if told != "yes":
            kind = "failure" if told == "no" else "skipped"
            ET.SubElement(case, kind, message=_printable(message)).text = _printable(text)
    tree = ET.ElementTree(suite)
    ET.indent(tree)
    try:
        tree.write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise SystemFailure(f"{path}: cannot be written ({error.strerror})", "check the directory") from error


def print_annotations(answer: Verification) -> None:
    """GitHub's workflow commands on stderr: an error for what is wrong, a warning for what cannot be told."""
    import sys

    from maitre.verify.verdict import answer_of

    level = _LEVELS[answer_of(answer.verdict)]
    lines = [(level, f"maitre verify: {answer.verdict}", f"{answer.summary}. {answer.findings[0].remedy}")]
    lines += [(_LEVELS[one.answer], one.name, one.message) for one in answer.confirmations if one.answer != "yes"]
    for kind, title, message in lines:
        print(f"::{kind} title={_escaped(title, ',:')}::{_escaped(message)}", file=sys.stderr)


def _escaped(text: str, more: str = "") -> str:
    """As GitHub's runner wants workflow commands (`actions/toolkit`, `command.ts`)."""
    for sign in "%\r\n" + more:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def _printable(text: str) -> str:
    """Without the control characters that XML does not allow."""
    return "".join(sign for sign in text if sign in "\t\n" or ord(sign) >= 32)
