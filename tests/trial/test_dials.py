"""The live dials: the plug-in's logic on a small scheduler of our own, and both sides of the files between."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import InputError, SystemFailure, UsageError
from maitre.recording import REQUIRED_COLUMNS
from maitre.records import Cell
from maitre.trial.dials import PLUGIN_FOLDER, dial_directory, fresh_dials
from maitre.trial.facts import ServerFacts

_spec = importlib.util.spec_from_file_location("fake_vllm", Path(__file__).with_name("fake_vllm.py"))
fake_vllm = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake_vllm)
POOL, LONGEST, Request, make_config = fake_vllm.POOL, fake_vllm.LONGEST, fake_vllm.Request, fake_vllm.make_config


def load_plugin(monkeypatch, version):
    """maitre_dials with a vLLM of ours under it."""
    for name, module in fake_vllm.modules(version).items():
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("maitre_dials", PLUGIN_FOLDER / "maitre_dials.py")
    plugin = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "maitre_dials", plugin)
    spec.loader.exec_module(plugin)
    return plugin


@pytest.fixture
def dials(tmp_path):
    return dial_directory(tmp_path / "dials")


@pytest.fixture
def start(monkeypatch, dials):
    def start(version="0.32.0", **settings):
        monkeypatch.setenv("MAITRE_DIALS_DIR", str(dials.path))
        return load_plugin(monkeypatch, version).DialScheduler(vllm_config=make_config(**settings))

    return start


def make_requests(run, lengths):
    return [Request(f"cmpl-maitre-{run}-{i}-0-0badcafe", *length) for i, length in enumerate(lengths)]


def serve(server, requests):
    """All at once, to the end; returns the scheduled tokens of every step."""
    for request in requests:
        server.add_request(request)
    steps = []
    while server.requests:
        output = server.schedule()
        assert output.num_scheduled_tokens, "nothing can be scheduled"
        steps.append(dict(output.num_scheduled_tokens))
        server.update_from_output(output)
    return steps


def cell(seqs, tokens):
    return Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens)


# starting


def test_a_server_says_what_it_is_and_how_it_was_started(start, dials):
    start("0.32.0", is_async=True, policy="priority", long_prefill_token_threshold=64)
    facts = ServerFacts.of(dials.state())
    assert (facts.vllm_version, facts.gpu, facts.vocab_size) == ("0.32.0", "NVIDIA H200", 2048)
    config = facts.config("m", cell(4, 64))
    assert config.cell == cell(4, 64)
    assert (config.dtype, config.kv_cache_dtype, config.tensor_parallel_size) == ("bfloat16", "auto", 1)
    assert (config.gpu_memory_utilization, config.watermark, config.max_model_len) == (0.92, 0.1, LONGEST)
    assert (config.scheduling_policy, config.long_prefill_token_threshold) == ("priority", 64)
    assert (facts.start.num_gpu_blocks, facts.start.async_scheduling) == (POOL, True)


def test_a_model_that_cannot_be_described_starts_all_the_same(monkeypatch, dials):
    monkeypatch.setenv("MAITRE_DIALS_DIR", str(dials.path))
    config = make_config()
    config.model_config.hf_config = None
    load_plugin(monkeypatch, "0.32.0").DialScheduler(vllm_config=config)
    assert dials.state().model_facts == {}


# turning


def test_each_run_keeps_to_its_own_dials_and_pool(start, dials):
    server = start()
    for run, (seqs, tokens, blocks) in enumerate([(8, 512, None), (2, 40, 17), (3, 64, 33), (8, 512, None)], 1):
        dials.turn(run, cell(seqs, tokens), blocks)
        steps = serve(server, make_requests(run, [(50, 30)] * 6))
        recorded = dials.read_run(run)
        columns = recorded.columns
        state = dials.wait_applied(run, timeout_s=0)
        assert state.applied.num_gpu_blocks == (blocks or POOL) == server.kv_cache_manager.block_pool.num_gpu_blocks
        assert max(map(len, steps)) <= seqs
        assert max(sum(step.values()) for step in steps) <= tokens
        assert max(columns["num_running"]) <= seqs
        assert max(columns["num_free_blocks"]) < (blocks or POOL)
        assert server.kv_cache_manager.block_pool.get_num_free_blocks() == (blocks or POOL) - 1
        assert server.kv_cache_manager.watermark_blocks == (blocks or POOL) // 10
        assert server.kv_cache_manager.num_resets == run
        assert recorded.applied == state.applied


def test_a_control_waits_until_the_server_is_empty(start, dials):
    server = start()
    dials.turn(1, cell(8, 512))
    first, second, third = make_requests(1, [(50, 5)] * 3)
    server.add_request(first)
    server.update_from_output(server.schedule())
    dials.turn(2, cell(1, 16))
    serve(server, [second])
    assert dials.state().run == 1
    serve(server, [third])
    assert dials.state().run == 2
    assert server.max_num_running_reqs == server.max_num_active_reqs == 1
    assert server.max_num_scheduled_tokens == server.scheduler_config.max_num_batched_tokens == 16


def test_the_model_runners_config_is_left_alone(start, dials):
    server = start()
    dials.turn(1, cell(1, 16))
    serve(server, make_requests(1, [(50, 5)]))
    assert server.vllm_config.scheduler_config.max_num_batched_tokens == 512


@pytest.mark.parametrize(
    ("seqs", "tokens", "blocks", "reason"),
    [
        (9, 512, None, "max_num_seqs 9 is above 8"),
        (8, 1024, None, "max_num_batched_tokens 1024 is above 512"),
        (8, 512, POOL + 1, f"num_gpu_blocks {POOL + 1} is above {POOL}"),
        (8, 512, 16, "does not hold a request of max_model_len"),
        (8, 512, 0, "num_gpu_blocks must be a whole number above 0"),
        (8, 4, None, "at least max_num_seqs"),
    ],
)
def test_what_cannot_be_set_is_refused_and_nothing_changes(start, dials, seqs, tokens, blocks, reason):
    server = start()
    dials.turn(1, cell(4, 64), 20)
    serve(server, make_requests(1, [(50, 5)]))
    dials.turn(2, cell(seqs, tokens), blocks)
    serve(server, make_requests(2, [(50, 5)]))
    with pytest.raises(UsageError, match=reason):
        dials.wait_applied(2)
    assert dials.state().applied.model_dump() == {
        "max_num_seqs": 4, "max_num_batched_tokens": 64, "num_gpu_blocks": 20,
    }  # fmt: skip
    assert server.kv_cache_manager.block_pool.get_num_free_blocks() == 19
    with pytest.raises(InputError, match="run-2"):
        dials.read_run(2)


def test_without_chunked_prefill_the_budget_holds_a_whole_prompt(start, dials):
    server = start(enable_chunked_prefill=False)
    dials.turn(1, cell(8, LONGEST - 1))
    serve(server, make_requests(1, [(50, 5)]))
    assert "without chunked prefill" in dials.state().refused


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"run": 1}', '{"run": "x"}', '{"run": 1, "max_num_seqs": true}'])
def test_a_broken_control_is_refused(start, dials, content):
    server = start()
    (dials.path / "control.json").write_text(content)
    serve(server, make_requests(1, [(50, 5)]))
    assert dials.state().refused
    assert dials.state().applied.max_num_seqs == 8


def test_a_control_of_an_earlier_server_does_not_count(start, dials):
    dials.turn(7, cell(1, 16))
    server = start()
    serve(server, make_requests(7, [(50, 5)]))
    assert dials.state().run is None
    assert server.max_num_running_reqs == 8


def test_blocks_that_are_still_in_use_are_no_empty_server(start, dials):
    server = start()
    server.kv_cache_manager.block_pool.get_new_blocks(1)
    dials.turn(1, cell(1, 16))
    serve(server, make_requests(1, [(50, 5)]))
    assert "still" not in (dials.state().refused or "")
    assert "KV blocks are in use" in dials.state().refused


# versions and servers


@pytest.mark.parametrize("version", ["0.8.5", "0.34.0", "1.0.0", "dev"])
def test_an_unknown_version_is_refused_by_name(monkeypatch, version):
    with pytest.raises(ImportError, match=f"know vLLM 0.9 to 0.33, not {version}"):
        load_plugin(monkeypatch, version)


@pytest.mark.parametrize(
    ("version", "has_watermark", "has_input_budget"),
    [
        ("0.9.0.1", False, False),
        ("0.11.2", False, False),
        ("0.13.0", False, False),
        ("0.24.0+cpu", True, False),
        ("0.30.0", True, True),
        ("0.33.1rc1.dev4", True, True),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_known_versions_touch_what_they_have(start, dials, version, has_watermark, has_input_budget, is_async):
    server = start(version, is_async=is_async)
    dials.turn(1, cell(8, 64), 17)
    serve(server, make_requests(1, [(60, 60)] * 5))
    recorded = dials.read_run(1)
    assert recorded.columns["num_preemptions"].sum() == recorded.request_columns["num_preemptions"].sum() > 0
    assert server.scheduler_config.max_num_batched_tokens == (64 if has_input_budget else 512)
    assert server.kv_cache_manager.watermark_blocks == (1 if has_watermark else 6)


def test_the_async_class_is_the_one_that_vllm_looks_for(start):
    server = start(is_async=True)
    assert sys.modules["vllm.v1.core.sched.async_scheduler"].AsyncScheduler in type(server).__mro__
    plain = start(is_async=False)
    assert sys.modules["vllm.v1.core.sched.async_scheduler"].AsyncScheduler not in type(plain).__mro__


def test_speculative_decoding_and_data_parallelism_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("MAITRE_DIALS_DIR", str(tmp_path))
    config = make_config()
    config.parallel_config.data_parallel_size = 2
    with pytest.raises(RuntimeError, match="data parallelism"):
        load_plugin(monkeypatch, "0.32.0").DialScheduler(vllm_config=config)


def test_no_directory_is_refused(monkeypatch):
    monkeypatch.delenv("MAITRE_DIALS_DIR", raising=False)
    with pytest.raises(RuntimeError, match="MAITRE_DIALS_DIR"):
        load_plugin(monkeypatch, "0.32.0").DialScheduler(vllm_config=make_config())


# recording


@given(
    lengths=st.lists(st.tuples(st.integers(1, 120), st.integers(1, 100)), min_size=1, max_size=12),
    seqs=st.integers(1, 8),
    tokens=st.integers(8, 512),
    blocks=st.integers(17, POOL),
)
def test_rows_add_up_to_what_was_computed(tmp_path_factory, lengths, seqs, tokens, blocks):
    dials = dial_directory(tmp_path_factory.mktemp("dials"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("MAITRE_DIALS_DIR", str(dials.path))
        server = load_plugin(monkeypatch, "0.32.0").DialScheduler(vllm_config=make_config())
        dials.turn(1, cell(seqs, tokens), blocks)
        contexts, preempted = _contexts(server), 0
        steps = serve(server, make_requests(1, lengths))
    columns, requests = dials.read_run(1).columns, dials.read_run(1).request_columns
    scheduled = columns["num_decodes"] + columns["prefill_tokens"]
    assert scheduled.tolist() == [sum(step.values()) for step in steps]
    assert (columns["num_decodes"] + columns["num_prefills"]).tolist() == [len(step) for step in steps]
    assert columns["decode_context_tokens"].tolist() == contexts
    assert requests["request_index"].tolist() == list(range(len(lengths)))
    assert requests["num_prompt_tokens"].tolist() == [prompt for prompt, _ in lengths]
    assert requests["num_output_tokens"].tolist() == [output for _, output in lengths]
    assert (requests["arrival_s"] < 0).all()
    assert columns["schedule_start_s"][0] == 0
    assert (np.diff(columns["output_end_s"]) > 0).all()
    for earlier, later in (("first_scheduled_s", "first_token_s"), ("first_token_s", "last_token_s")):
        assert (requests[earlier] <= requests[later]).all()
    assert requests["last_token_s"].max() == columns["output_end_s"][-1]
    assert columns["num_preemptions"].sum() == requests["num_preemptions"].sum() >= preempted


def _contexts(server):
    """Context of the decodes of every step, counted plainly."""
    contexts, schedule = [], server.schedule

    def counted():
        output = schedule()
        requests = [(server.requests[name], n) for name, n in output.num_scheduled_tokens.items()]
        contexts.append(
            sum(r.num_computed_tokens for r, n in requests if n == 1 and r.num_computed_tokens > r.num_prompt_tokens)
        )
        return output

    server.schedule = counted
    return contexts


def test_an_aborted_request_has_no_last_token(start, dials):
    server = start()
    dials.turn(1, cell(8, 512))
    first, second = make_requests(1, [(50, 5), (50, 5)])
    server.add_request(first)
    server.add_request(second)
    server.update_from_output(server.schedule())
    server.abort(second)
    serve(server, [])
    requests = dials.read_run(1).request_columns
    assert np.isnan(requests["last_token_s"]).tolist() == [False, True]
    assert requests["num_output_tokens"].tolist() == [5, 1]


def test_a_dropped_run_leaves_nothing_to_the_next(start, dials):
    """As with async scheduling: the last step of the dropped run is under way when its requests are aborted."""
    server = start()
    dials.turn(1, cell(8, 512), 17)
    dropped = make_requests(1, [(60, 60)] * 5)
    for request in dropped:
        server.add_request(request)
    while not sum(request.num_output_tokens for request in dropped):
        server.update_from_output(server.schedule())
    under_way = server.schedule()
    server.maitre.num_preemptions = 3  # in a step that came to nothing
    for request in list(server.requests.values()):
        server.abort(request)
    dials.turn(2, cell(8, 512))
    server.add_request(make_requests(2, [(50, 5)])[0])
    server.update_from_output(under_way)
    serve(server, [])
    recorded = dials.read_run(2)
    assert recorded.columns["num_preemptions"].sum() == 0
    assert recorded.columns["schedule_start_s"][0] == 0
    assert len(recorded.columns["num_decodes"]) == 5
    assert recorded.request_columns["request_index"].tolist() == [0]
    assert np.isnan(dials.read_run(1).request_columns["last_token_s"]).all()
    assert server.kv_cache_manager.block_pool.get_num_free_blocks() == POOL - 1


def test_requests_of_others_and_of_earlier_runs_are_no_ones(start, dials):
    server = start()
    dials.turn(2, cell(8, 512))
    serve(server, [Request("chatcmpl-a81", 50, 5), *make_requests(1, [(50, 5)]), *make_requests(2, [(50, 5)])])
    assert dials.read_run(2).request_columns["request_index"].tolist()[0] == 0
    assert np.isnan(dials.read_run(2).request_columns["request_index"]).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("request_id", "index"),
    [
        ("cmpl-maitre-3-17-0", 17),
        ("cmpl-maitre-3-17-0-12345678", 17),
        ("cmpl-maitre-3-0-25-0badcafe", 25),
        ("0_cmpl-maitre-3-4-1-0badcafe", 5),
        ("chatcmpl-maitre-3-17", 17),
        ("chatcmpl-maitre-3-17-12345678", 17),
        ("maitre-3-17", 17),
        ("cmpl-maitre-2-17-0", math.nan),
        ("cmpl-5f1c-0", math.nan),
    ],
)
def test_the_index_is_found_in_the_engines_request_id(monkeypatch, request_id, index):
    found = load_plugin(monkeypatch, "0.32.0").request_index(request_id, 3)
    assert found == index or (math.isnan(found) and math.isnan(index))


def test_a_full_disk_does_not_stop_the_server(start, dials, monkeypatch):
    server = start()
    dials.turn(1, cell(8, 512))
    server.add_request(make_requests(1, [(50, 5)])[0])
    monkeypatch.setattr(server.maitre.run, "write", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    serve(server, [])
    assert server.maitre.run is None


def test_rows_come_while_the_server_is_busy(start, dials, monkeypatch):
    server = start()
    monkeypatch.setattr(sys.modules["maitre_dials"], "FLUSH_S", 0.0)
    dials.turn(1, cell(8, 512))
    server.add_request(make_requests(1, [(50, 5)])[0])
    server.update_from_output(server.schedule())
    assert len(dials.read_run(1).columns["num_decodes"]) == 1


def test_nothing_is_recorded_before_a_run(start, dials):
    serve(start(), make_requests(1, [(50, 5)]))
    assert sorted(file.name for file in dials.path.iterdir()) == ["state.json"]


# the host's side


def test_arguments_and_environment(dials, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    folder, mine = dials.environment()["PYTHONPATH"].split(":")
    assert (PLUGIN_FOLDER / "maitre_dials.py").is_file()
    assert (folder, mine) == (str(PLUGIN_FOLDER), "/mine")
    assert dials.environment()["MAITRE_DIALS_DIR"] == str(dials.path)
    assert dials.arguments(cell(64, 2048)) == [
        "--scheduler-cls", "maitre_dials.DialScheduler", "--max-num-seqs", "64", "--max-num-batched-tokens", "2048",
    ]  # fmt: skip


def test_the_plugin_folder_shadows_nothing():
    assert [file.name for file in PLUGIN_FOLDER.iterdir() if file.name != "__pycache__"] == ["maitre_dials.py"]


def test_step_columns_are_those_of_a_recording(monkeypatch):
    columns = load_plugin(monkeypatch, "0.32.0").STEP_COLUMNS
    assert len(columns) == 13
    assert set(REQUIRED_COLUMNS) < set(columns)


def test_a_run_is_followed_row_by_row(start, dials, monkeypatch):
    server = start()
    monkeypatch.setattr(sys.modules["maitre_dials"], "FLUSH_S", 0.0)
    steps = dials.follow_run(1)
    assert steps.read() is None
    dials.turn(1, cell(8, 512))
    server.add_request(make_requests(1, [(50, 5)])[0])
    seen, whole_rows = [], dials.path / "run-1.steps"
    while server.requests:
        server.update_from_output(server.schedule())
        written = whole_rows.read_bytes()
        whole_rows.write_bytes(written[:-3])  # as if the server were in the middle of writing
        seen.append(0 if (record := steps.read()) is None else record.num_steps)
        whole_rows.write_bytes(written)
    assert seen == [0, 1, 2, 3, 4]
    followed, recorded = steps.read(), dials.read_run(1)
    assert all(np.array_equal(followed.columns[name], values) for name, values in recorded.columns.items())


def test_a_torn_last_row_is_left_out(start, dials):
    server = start()
    dials.turn(1, cell(8, 512))
    serve(server, make_requests(1, [(50, 5)] * 3))
    whole = dials.read_run(1)
    for name in ("steps", "requests"):
        file = dials.path / f"run-1.{name}"
        file.write_bytes(file.read_bytes()[:-3])
    torn = dials.read_run(1)
    assert len(torn.columns["num_decodes"]) == len(whole.columns["num_decodes"]) - 1
    assert len(torn.request_columns["arrival_s"]) == 2


def test_silence_is_a_failure_with_a_hint(dials):
    dials.turn(1, cell(8, 512))
    assert dials.state() is None
    with pytest.raises(SystemFailure, match="run 1 was not begun"):
        dials.wait_applied(1, timeout_s=0)


def test_another_protocol_is_refused(start, dials):
    start()
    content = json.loads((dials.path / "state.json").read_text())
    (dials.path / "state.json").write_text(json.dumps(content | {"protocol": 1}))
    with pytest.raises(InputError, match="protocol"):
        dials.state()


def test_every_start_has_a_directory_of_its_own_that_is_never_used_again(tmp_path):
    numbers = []
    for _ in range(2):
        number, dials = fresh_dials(tmp_path / "dials")
        (dials.path / "run-1.steps").write_bytes(b"kept")
        numbers.append(number)
    (tmp_path / "dials" / "start-1").rename(tmp_path / "dials" / "start-9")
    numbers.append(fresh_dials(tmp_path / "dials")[0])
    assert numbers == [1, 2, 10]
    assert len(list((tmp_path / "dials").glob("*/run-1.steps"))) == 2


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(SystemFailure, match="cannot be made"):
        dial_directory(tmp_path / "file" / "dials")
