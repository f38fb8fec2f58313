"""The user's command: where vLLM's arguments are, which port answers, and changes that leave the rest alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import UsageError
from maitre.trial.command import ServeCommand


def parse(text):
    return ServeCommand.parse(text.split())


@pytest.mark.parametrize(
    ("text", "launcher", "first_argument", "url", "name"),
    [
        ("vllm serve m", "direct", "m", "http://127.0.0.1:8000", "m"),
        ("/opt/v/bin/vllm serve m --port 81 --host 0.0.0.0", "direct", "m", "http://127.0.0.1:81", "m"),
        ("vllm serve m --port=82 --host=::1 --served_model_name a b", "direct", "m", "http://[::1]:82", "a"),
        ("python -m vllm.entrypoints.openai.api_server --model m", "direct", "--model", "http://127.0.0.1:8000", "m"),
        ("python -m vllm.entrypoints.cli.main serve m --host h", "direct", "m", "http://h:8000", "m"),
        ("uv run --with vllm vllm serve m", "direct", "m", "http://127.0.0.1:8000", "m"),
        ("numactl -N 0 python /x/vllm/entrypoints/openai/api_server.py --model=m", "direct", "--model=m",
         "http://127.0.0.1:8000", "m"),
        ("srun -w n7 --gpus 1 vllm serve m", "srun", "m", "http://n7:8000", "m"),
        ("srun --nodelist=n[1-2] vllm serve m", "srun", "m", "http://127.0.0.1:8000", "m"),
        ("docker run --rm --gpus all -p 9000:8000 vllm/vllm-openai:v0.26.0 --model m", "container", "--model",
         "http://127.0.0.1:9000", "m"),
        ("podman run --rm --network host -e A=1 docker.io/vllm/vllm-openai m --port 83", "container", "m",
         "http://127.0.0.1:83", "m"),
        ("docker run -v /a:/b -p10.0.0.1:84:85/tcp --entrypoint vllm mine serve m --port 85", "container", "m",
         "http://10.0.0.1:84", "m"),
        ("docker --context far container run -p [::1]:84:8000 vllm/vllm-openai m", "container", "m",
         "http://[::1]:84", "m"),
    ],
)  # fmt: skip
def test_every_way_to_start_vllm_is_understood(text, launcher, first_argument, url, name):
    command = parse(text)
    assert (command.launcher, command.base_url, command.served_model_name) == (launcher, url, name)
    assert command.words[command.arguments_at] == first_argument
    assert command.words == tuple(text.split())


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no command"),
        ("python app.py", "no `serve`"),
        ("sudo vllm serve m", "another user"),
        ("ssh far vllm serve m", "another machine"),
        ("setsid vllm serve m", "process group"),
        ("kubectl run x -- vllm serve m", "cluster"),
        ("vllm serve m && echo", "shell syntax"),
        ("vllm serve m --port eight", "port"),
        ("vllm serve m --port 70000", "port"),
        ("vllm serve m --uds /tmp/s", "plain HTTP"),
        ("vllm serve m --ssl-keyfile=k", "plain HTTP"),
        ("docker exec c vllm serve m", "no `run`"),
        ("docker compose run vllm serve m", "no `run`"),
        ("docker run -d -p 1:8000 vllm/vllm-openai m", "behind"),
        ("docker run -itp 1:8000 vllm/vllm-openai m", "terminal"),
        ("docker run -p 1:8001 vllm/vllm-openai m", "publish port 8000"),
        ("docker run -p 8000 vllm/vllm-openai m", "publish port 8000"),
        ("docker run -p x:8000 vllm/vllm-openai m", "port"),
        ("docker run -p 1:8000 mine --model m", "where vLLM's arguments begin"),
        ("docker run -p 1:8000 --entrypoint bash vllm/vllm-openai start.sh", "where vLLM's arguments begin"),
        ("docker run -p 1:8000", "where vLLM's arguments begin"),
        ("sudo docker run -p 1:8000 vllm/vllm-openai m", "another user"),
    ],
)
def test_what_cannot_be_changed_or_stopped_is_refused_with_the_command(text, word):
    with pytest.raises(UsageError, match=word) as caught:
        parse(text)
    assert caught.value.hint
    assert not text or text.split()[0] in str(caught.value)


def test_flags_are_replaced_in_place_in_every_spelling_or_appended():
    command = parse("vllm serve m --max_num_seqs=8 -tp 2 --max-num-batched-tokens 512 --served-model-name a b")
    changed = command.with_flags(
        {"--max-num-seqs": 64, "--max-num-batched-tokens": 8192, "--tensor-parallel-size": 4, "--scheduler-cls": "d.S"}
    )
    assert " ".join(changed.words) == (
        "vllm serve m --max_num_seqs=64 -tp 4 --max-num-batched-tokens 8192 --served-model-name a b --scheduler-cls d.S"
    )
    assert command.flag("--max-num-seqs") == "8"
    assert parse("vllm serve m --max-model-len -1").with_flags({"--max-model-len": 9}).words[-2:] == (
        "--max-model-len", "9",
    )  # fmt: skip
    assert parse("vllm serve m --max-num-seqs --port 81").with_flags({"--max-num-seqs": 9}).port == 81
    assert parse("vllm serve --port 81 -- m").with_flags({"--max-num-seqs": 9}).words[-2:] == ("--", "m")


def test_a_switch_replaces_its_opposite():
    command = parse("vllm serve m --enable-prefix-caching --port 81 --enable_prefix_caching")
    changed = command.with_flags({"--no-enable-prefix-caching": None})
    assert " ".join(changed.words) == "vllm serve m --port 81 --no-enable-prefix-caching"
    assert changed.with_flags({"--no-enable-prefix-caching": None}) == changed


def test_the_environment_of_a_direct_command_is_beside_its_words():
    command = ServeCommand.parse(["CUDA_VISIBLE_DEVICES=1", "EMPTY=", "vllm", "serve", "m"])
    changed = command.with_environment({"PYTHONPATH": "/x"}, {"/x": "/y"})
    assert changed.environment == {"CUDA_VISIBLE_DEVICES": "1", "EMPTY": "", "PYTHONPATH": "/x"}
    assert changed.words == ("vllm", "serve", "m")
    assert changed.with_flags({"--port": 81}).environment == changed.environment
    assert str(command) == "CUDA_VISIBLE_DEVICES=1 EMPTY= vllm serve m"


def test_the_environment_of_a_container_stands_before_the_image():
    command = parse("docker run --rm -p 81:8000 vllm/vllm-openai --model m")
    mounts = {"/host": "/m:ro", "/dials": "/dials"}
    changed = command.with_environment({"PYTHONPATH": "/m"}, mounts).with_container_id_file("/s/1.cid")
    assert " ".join(changed.words) == (
        "docker run --rm -p 81:8000 -e PYTHONPATH=/m -v /host:/m:ro -v /dials:/dials --cidfile /s/1.cid "
        "vllm/vllm-openai --model m"
    )
    assert changed.container_id_file == "/s/1.cid"
    assert changed.with_container_id_file("/other") == changed
    assert changed.container_tool == ("docker",)
    assert changed.with_flags({"--max-num-seqs": 4}).words[-4:] == ("--model", "m", "--max-num-seqs", "4")


def test_srun_that_keeps_variables_from_the_server_is_refused():
    with pytest.raises(UsageError, match="keeps variables"):
        parse("srun --export=NONE vllm serve m").with_environment({"A": "1"})
    assert parse("srun --export=ALL,B=2 vllm serve m").with_environment({"A": "1"}).environment == {"A": "1"}


def test_the_key_that_the_server_will_ask_for_is_found():
    assert parse("vllm serve m --api-key k").api_key == "k"
    assert ServeCommand.parse(["VLLM_API_KEY=k", "vllm", "serve", "m"]).api_key == "k"
    assert parse("docker run -p 1:8000 -e VLLM_API_KEY=k -e OTHER vllm/vllm-openai m").api_key == "k"
    assert parse("vllm serve m").api_key is None


FLAGS = st.sampled_from(["--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization", "--port"])
VALUES = st.integers(1, 60000)
SPELLED = st.tuples(FLAGS, VALUES, st.booleans(), st.booleans())


@st.composite
def commands(draw):
    start = draw(st.sampled_from(["vllm serve m", "docker run --network=host -e A=b --gpus all vllm/vllm-openai m"]))
    words = start.split()
    for name, value, equals, underscores in draw(st.lists(SPELLED, max_size=6)):
        spelled = "--" + name[2:].replace("-", "_") if underscores else name
        words += [f"{spelled}={value}"] if equals else [spelled, str(value)]
        words += draw(st.sampled_from([[], ["--enforce-eager"], ["--seed", "-1"]]))
    return ServeCommand.parse(words)


@given(commands(), FLAGS, VALUES)
def test_a_flag_that_is_set_is_the_one_that_counts_and_the_rest_stays(command, flag, value):
    changed = command.with_flags({flag: value})
    assert changed.flag(flag) == str(value)
    assert changed.words[: command.arguments_at] == command.words[: command.arguments_at]
    assert changed.with_flags({flag: value}) == changed
    assert len(changed.words) - len(command.words) == (2 if command.flag(flag) is None else 0)
    for other in {"--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization", "--port"} - {flag}:
        assert changed.flag(other) == command.flag(other)


@given(commands(), st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.text("ab =/-", max_size=5)))
def test_variables_change_no_argument_of_vllm(command, variables):
    changed = command.with_environment(variables)
    assert changed.words[changed.arguments_at :] == command.words[command.arguments_at :]
    assert changed.base_url == command.base_url
    assert changed.launcher == command.launcher


@given(st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12), max_size=8))
def test_any_words_are_understood_or_refused(words):
    try:
        command = ServeCommand.parse(words)
    except UsageError:
        return
    assert 0 < command.port < 65536
    assert command.with_flags({"--max-num-seqs": 7}).flag("--max-num-seqs") == "7"
