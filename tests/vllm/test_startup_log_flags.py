"""The flags in force, from the command, the argument dump, the configuration and vLLM's own lines."""

import pytest

COMMANDS = {
    "plain": "vllm serve m --max-num-seqs 8 --max-num-batched-tokens 64000",
    "underscores": "vllm serve m --max_num_seqs 8 --max_num_batched_tokens 64000",
    "equals": "vllm serve m --max-num-seqs=8 --max-num-batched-tokens=64k",
    "abbreviated": "vllm serve m --max-num-s 8 --max-num-b 64000",
    "a prompt": "me@host:~$ vllm serve m --max-num-seqs 8 --max-num-batched-tokens 64000",
    "traced": "+ exec /opt/venv/bin/vllm serve m --max-num-seqs 8 --max-num-batched-tokens 64000",
    "environment": "CUDA_VISIBLE_DEVICES=0,1 vllm serve m --max-num-seqs 8 --max-num-batched-tokens 64000",
    "module": "python3 -m vllm.entrypoints.openai.api_server --max-num-seqs 8 --max-num-batched-tokens 64000",
    "docker": "docker run --gpus all vllm/vllm-openai:v0.9.1 --model m --max-num-seqs 8 --max-num-batched-tokens 64000",
    "lines": "docker run \\\n  vllm/vllm-openai:v0.9.1 \\\n  --max-num-seqs 8 \\\n  --max-num-batched-tokens 64000",
    "a list in YAML": 'command: ["vllm", "serve", "m", "--max-num-seqs", "8", "--max-num-batched-tokens", "64000"]',
    "a list in Python": "Running command: ['vllm', 'serve', 'm', '--max-num-seqs=8', '--max-num-batched-tokens=64000']",
    "0.9 dictionary": "INFO [utils.py:1] non-default args: {'max_num_seqs': 8, 'max_num_batched_tokens': 64000}",
    "0.6 namespace": "INFO 06-01 00:00:00 a.py:1] args: Namespace(max_num_batched_tokens=64000, max_num_seqs=8)",
    "DEBUG defaults": (
        "DEBUG [arg_utils.py:1] Defaulting max_num_batched_tokens to 64000 for OPENAI_API_SERVER usage context.\n"
        "DEBUG [arg_utils.py:1] Defaulting max_num_seqs to 8 for OPENAI_API_SERVER usage context."
    ),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_flags_in_force(command, one_start):
    startup = one_start(command)
    assert (startup.max_num_seqs, startup.max_num_batched_tokens) == (8, 64_000)


def test_other_flags_and_short_ones(one_start):
    startup = one_start(
        "vllm serve org/m -tp 2 -pp=3 --max-model-len 32K --kv-cache-dtype fp8 --gpu-memory-util 0.95 --enforce-eager"
    )
    assert (startup.tensor_parallel_size, startup.pipeline_parallel_size, startup.max_model_len) == (2, 3, 32_768)
    assert (startup.kv_cache_dtype, startup.gpu_memory_utilization, startup.enforce_eager) == ("fp8", 0.95, True)
    assert startup.model == "org/m"


def test_what_is_in_force_wins_over_what_was_asked(one_start):
    text = "vllm serve m --max-num-batched-tokens 512\nINFO Raising max_num_batched_tokens from 512 to 2496\n"
    assert one_start(text).max_num_batched_tokens == 2496


def test_a_default_that_is_printed_nowhere_stays_unknown(one_start, pool_lines):
    startup = one_start(
        "INFO 06-01 00:00:00 api_server.py:1] args: Namespace(max_num_batched_tokens=None, max_num_seqs=None, port=1)\n"
        + pool_lines("", 5)
    )
    assert (startup.max_num_seqs, startup.max_num_batched_tokens) == (None, None)


def test_the_configuration_of_the_engine(one_start):
    startup = one_start(
        "(EngineCore pid=7) INFO 11-29 16:53:59 [core.py:116] Initializing a V1 LLM engine (v0.26.0) with config: "
        "model='a/b', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=2, kv_cache_dtype=auto"
    )
    assert (startup.version, startup.max_model_len, startup.tensor_parallel_size) == ("0.26.0", 8192, 2)
    assert (startup.dtype, startup.kv_cache_dtype) == ("bfloat16", None)


def test_the_logo_of_0_15_and_later_has_the_version(one_start):
    assert (
        one_start(
            "(APIServer pid=1) INFO 11-29 20:45:25 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0"
        ).version
        == "0.32.0"
    )


def test_a_sentence_about_vllm_serve_is_no_command(one_start, pool_lines):
    text = pool_lines("", 5) + "INFO 11-29 20:45:53 [x.py:1] Restart vllm serve with --max-num-seqs 9 to enable them.\n"
    assert one_start(text).max_num_seqs is None


def test_what_a_user_wrote_is_no_figure(one_start, pool_lines):
    prompt = (
        "INFO 06-01 00:00:00 [logger.py:1] Received request x: prompt: 'GPU KV cache size: 7 tokens', params: n=1\n"
    )
    assert one_start(prompt + pool_lines("", 5000) + prompt).kv_cache_tokens == 5000


def test_what_is_nested_in_a_dump_is_not_the_servers_own(args_line, one_start):
    nested = {"method": "draft_model", "model": "small", "quantization": {"dtype": "float16"}}
    startup = one_start(args_line(speculative_config=nested, model="large", dtype="bfloat16"))
    assert (startup.model, startup.dtype) == ("large", "bfloat16")


def test_an_override_of_the_blocks_is_passed_on(one_start, pool_lines):
    line = "INFO 12-02 10:00:10 [a.py:1] Overriding num_gpu_blocks=900 with num_gpu_blocks_override=512\n"
    startup = one_start(line + pool_lines("", 8192))
    assert startup.num_gpu_blocks_override == 512
    assert "num_gpu_blocks_override" in " ".join(startup.notes)
