"""`maitre tune --slo` against a real vLLM on a CPU: runs at chosen rates, one of which has met the targets."""

import json
import os
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.vllm

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "bos_token_id": 2047, "eos_token_id": 2047,
}  # fmt: skip
MAITRE = [sys.executable, "-c", "from maitre.cli import main; main()"]
LENIENT = ["--slo", "ttft_p90=10s", "--slo", "itl_p90=2s"]
"""So that a busy machine meets them, too: the capacity ends the rate."""


def test_a_rate_is_foretold_and_a_run_at_that_rate_meets_the_targets(vllm, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "XDG_STATE_HOME": str(tmp_path / "state")}
    words = [
        "tune", "lognormal:100:0.5:16:0.5", "--num-requests", "60", "--study", "study", "--engine", "live", "--json",
        "--max-num-seqs", "2,16", "--max-num-batched-tokens", "512", "--present", "2x512", *LENIENT,
        "--max-trials", "5", "--", str(vllm), "serve", str(model), "--load-format", "dummy", "--skip-tokenizer-init",
        "--enforce-eager", "--max-model-len", "2048", "--no-enable-prefix-caching", "--port", str(port),
    ]  # fmt: skip

    def run():
        done = subprocess.run(
            [*MAITRE, *words], env=os.environ | variables, cwd=tmp_path, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), json.loads((tmp_path / "study/study.json").read_text())

    answer, study = run()
    few, many = (next(cell for cell in study["cells"] if cell["max_num_seqs"] == seqs) for seqs in (2, 16))
    assert many["highest_rate"]["rate_rps"] > few["highest_rate"]["rate_rps"]
    rates = [decision["rate_rps"] for decision in study["decisions"]]
    assert rates[0] is None
    assert all(rates[1:])
    assert many["engine"] == "live"
    assert many["attainment"]["met"]
    assert many["highest_rate"]["confirmed_rps"] == many["arrival_rps"]
    assert many["duration_s"] > 0.9 * 60 / many["arrival_rps"]

    (tmp_path / "study" / "study.json").unlink()  # as if it had been killed before the end
    again, _ = run()
    assert again["recommended"] == answer["recommended"]
    assert len(list((tmp_path / "study" / "logs").iterdir())) == 1, "the server was started for nothing"
