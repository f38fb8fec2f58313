"""The recorded cache layouts are what the installed vLLM computes."""

import json
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

GOLDEN = json.loads(Path("tests/data/cache_layouts_vllm_0.32.0.json").read_text())
CHECKED = ["qwen3-30b-a3b", "gpt-oss-120b", "gemma-4-31b", "nemotron-h-8b", "deepseek-v2-lite"]
"""The first is a mixture of experts: see cache_layouts.py."""


def test_the_recorded_layouts_are_vllms_own(vllm):
    cases = [case for name in CHECKED for case in GOLDEN["layouts"] if case["model"] == name]
    lines = "\n".join(json.dumps(case | {"config": GOLDEN["configs"][case["model"]]}) for case in cases)
    done = subprocess.run(
        [str(vllm.parent / "python"), "tests/vllm_live/cache_layouts.py"],
        input=lines,
        text=True,
        capture_output=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        timeout=500,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(cases), done.stderr[-3000:]
    for case, answer in zip(cases, answers, strict=True):
        assert answer["num_blocks"] == 80 * 2**30 // case["bytes_per_block"], case["model"]
        for key in ("num_groups", "concurrency_80gib"):
            assert answer[key] == case[key], (case["model"], key)
