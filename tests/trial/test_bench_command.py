"""From a server's command to the benchmark's: where it is written, what only a server has, and whose dials count."""

import pytest

from maitre.errors import UsageError
from maitre.trial.bench_command import BenchCommand, without_flags


def words(text, **options):
    command = BenchCommand.parse(text.split())
    return " ".join(command.words(mounts=options.get("mounts", {}), container_id_file="/s/1.cid"))


@pytest.mark.parametrize(
    ("serve", "bench"),
    [
        ("vllm serve m", "vllm bench throughput --model m"),
        ("/opt/v/bin/vllm serve m --dtype half", "/opt/v/bin/vllm bench throughput --model m --dtype half"),
        ("uv run --with vllm vllm serve --model m", "uv run --with vllm vllm bench throughput --model m"),
        ("python -m vllm.entrypoints.openai.api_server --model m",
         "python -m vllm.entrypoints.cli.main bench throughput --model m"),
        ("numactl -N 0 python /x/vllm/entrypoints/openai/api_server.py --model=m",
         "numactl -N 0 python -m vllm.entrypoints.cli.main bench throughput --model=m"),
        ("srun -w n7 --gpus 1 vllm serve m", "srun -w n7 --gpus 1 vllm bench throughput --model m"),
        ("docker run -p 9:8000 vllm/vllm-openai --model m",
         "docker run -p 9:8000 --cidfile /s/1.cid --entrypoint vllm vllm/vllm-openai bench throughput --model m"),
        ("podman run --network host mine vllm serve m --port 83",
         "podman run --network host --cidfile /s/1.cid mine vllm bench throughput --model m"),
        ("vllm bench throughput --model m", "vllm bench throughput --model m"),
        ("python benchmarks/benchmark_throughput.py --model m", "python benchmarks/benchmark_throughput.py --model m"),
    ],
)  # fmt: skip
def test_every_way_to_start_a_server_becomes_the_benchmark(serve, bench):
    assert words(serve) == bench


def test_what_only_a_server_has_is_left_out_and_the_rest_stays():
    flags = (
        "--port 81 --host=::1 --api_key a b --tensor-parallel-size 2 --enable-auto-tool-choice --tool-call-parser x "
        "--no-enable-log-outputs --quantization fp8 --allowed-origins [] --long-prefill-token-threshold -1 "
        "--skip-tokenizer-init --tokenizer t --max-model-len 8k -asc 4"
    )
    bench = words(f"vllm serve m {flags}")
    assert bench == (
        "vllm bench throughput --model m --tensor-parallel-size 2 --quantization fp8 "
        "--long-prefill-token-threshold -1 --max-model-len 8k"
    )


def test_a_container_sees_the_dataset():
    bench = words("docker run -p 8000:8000 vllm/vllm-openai m", mounts={"/s/bench": "/s/bench:ro"})
    assert "-v /s/bench:/s/bench:ro" in bench
    assert bench.index("-v") < bench.index("vllm/vllm-openai")


def test_flags_that_are_set_replace_those_of_the_user():
    command = BenchCommand.parse(["vllm", "serve", "m", "--max-num-seqs=8", "--max_num_seqs", "9", "--seed", "1"])
    changed = command.with_flags({"--max-num-seqs": "4", "--disable-detokenize": None})
    assert changed.arguments == ("--model", "m", "--seed", "1", "--max-num-seqs", "4", "--disable-detokenize")
    assert (command.flag("--max-num-seqs"), changed.flag("--max-num-seqs")) == ("9", "4")


def test_variables_come_with_the_command_and_only_the_script_is_one():
    bench = BenchCommand.parse(["A=1", "vllm", "serve", "m"])
    script = BenchCommand.parse(["B=2", "python", "x/benchmark_throughput.py", "--model", "m"])
    assert (bench.environment, bench.is_script, str(bench)) == (
        {"A": "1"},
        False,
        "A=1 vllm bench throughput --model m",
    )
    assert (script.environment, script.is_script, script.model) == ({"B": "2"}, True, "m")


def test_a_negative_number_is_a_value():
    assert without_flags(["--a", "-1", "--b", "-2.5", "--c"], {"--a"}) == ("--b", "-2.5", "--c")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("vllm bench throughput --dtype half", "names no model"),
        ("docker run --entrypoint vllm i bench throughput --model m", "in a container"),
        ("vllm run m", "has no `serve`"),
        ("", "no command"),
        ("ssh host vllm serve m", "another machine"),
    ],
)
def test_what_cannot_be_benchmarked_is_refused(text, match):
    with pytest.raises(UsageError, match=match) as caught:
        BenchCommand.parse(text.split())
    assert caught.value.hint
