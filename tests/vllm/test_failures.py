"""Why a server failed, from its log: every public case, and the wordings of every version."""

import json

import pytest

from maitre.vllm.failures import NUM_LAST_LINES, classify_failure

TRACE = "Traceback (most recent call last):"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 23.57 GiB"
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
READY = "INFO:     Application startup complete."


def classify(text, exit_code=1, *, timed_out=False):
    return classify_failure(text, exit_code, timed_out=timed_out)


def frame(function, file="vllm/v1/worker/gpu_model_runner.py"):
    return f'  File "/v/site-packages/{file}", line 1, in {function}\n    self.call()'


CORE = frame("_initialize_kv_caches", "vllm/v1/engine/core.py")


def startup_failures(expect):
    startups = expect.get("startups", [expect])
    return [startup["failure"] for startup in startups if startup.get("failure")]


def test_every_public_startup_log_with_a_failure(shared_path):
    cases = json.loads((shared_path / "cases" / "cases.json").read_text("utf-8"))
    wrong, num_failures = [], 0
    for case in cases:
        if case["kind"] != "startup-log":
            continue
        text = "\n".join((shared_path / "cases" / name).read_text("utf-8") for name in case["files"])
        expected = startup_failures(case["expect"])
        found = classify(text)
        num_failures += len(expected)
        for code in expected:
            right = found.code == code if isinstance(code, str) else True  # {"present": true}: a failure, cause unknown
            wrong += [] if right and found.remedy and found.last_lines else [(case["id"], code, found.code)]
        if not expected and found.code != "unknown":
            wrong.append((case["id"], None, found.code))
    assert not wrong
    assert num_failures >= 7


WORDINGS = {
    "no-kv-memory": {
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory": "raise --gpu",
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a": "raise --gpu",
        "INFO 08-20 18:04:22 [gpu_worker.py:276] Available KV cache memory: -0.5 GiB": "--max-num-batched-tokens",
    },
    "kv-smaller-than-max-model-len": {
        "The model's max seq len (9000) is larger than the maximum number that can be stored in KV cache (1024).": (
            "--max-model-len to 1024 or less"
        ),
        "To serve at least one request with the models's max seq len (9000), (1.75 GB KV cache is needed": "lower",
        "at least one request with the models's max seq len (9), (2 GiB. the estimated maximum model length is 7. T": (
            "--max-model-len to 7 or less"
        ),
        "at least one request with the model's max seq len (9), (2 GiB. estimated maximum model length is 7.": "to 7",
    },
    "free-memory-below-utilization": {
        "Free memory on device (20.1/23.6 GiB) on startup is less than desired GPU memory utilization (0.9": "0.85",
        "Free memory on device cuda:0 (4.98/15.6 GiB) on startup is less than desired GPU memory utilization": "0.31",
        "Available memory on node 0 (2.0/4.0 GiB) on startup is less than desired CPU memory utilization (0.92": "0.50",
    },
    "oom-sampler": {
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. P": "below 256",
        "RuntimeError: CUDA out of memory occurred when warming up pooler (task='x') with 64 dummy": "below 64",
    },
    "oom-weights": {
        "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-util": "--tensor-parallel-size"
    },
    "refused-setting": {
        "ValueError: max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64).": (
            "raise --max-num-batched-tokens to 64 or more, or lower --max-num-seqs to 32"
        ),
        "  Value error, max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64). [type": "to 64",
        "ValueError: max_num_batched_tokens (512) is smaller than max_model_len (4096). This effectively": "to 4096",
        "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (100). Each": "--max-num-seqs to 100",
        "ValueError: long_prefill_token_threshold (9) cannot be greater than the max_model_len (8).": "lower",
        "ValueError: max_num_active_seqs (9) cannot be greater than max_num_seqs (8).": "lower",
        "VllmConfig does not have enough slots to schedule a token and support the": "--max-num-batched-tokens",
        "max_num_scheduled_tokens is 0 which does not allow any tokens to be scheduled.": "--max-num-batched-tokens",
        "max_tokens_per_mm_item (9) is larger than it. Please increase max_num_batched_tokens.": "raise",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig": "flag",
        "vllm serve: error: argument --max-num-seqs: invalid int value: 'x'": "flag",
    },
    "unsupported-scheduler": {
        "api_server.py: error: unrecognized arguments: --scheduler-cls d.S": "0.8",
        "ImportError: maitre's live dials know vLLM 0.8 to 0.33; this is 0.34.0: start": "--scheduler-cls",
    },
    "port-in-use": {
        "OSError: [Errno 98] Address already in use": "--port",
        "ERROR:    [Errno 98] error while attempting to bind on address ('::', 80): address already in use": "--port",
        "docker: Error response from daemon: Bind for 0.0.0.0:80 failed: port is already allocated.": "--port",
    },
    "model-not-found": {
        "OSError: a/b is not a local folder and is not a valid model identifier listed on": "name",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error.": "HF_TOKEN",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'": "path",
    },
    "killed": {
        "Engine core initialization failed. Failed core proc(s): {'EngineCore_DP0': -9}": "memory",
        "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.": "host memory",
    },
    "crash-under-load": {
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)": "lower",
        "vllm.engine.async_llm_engine.AsyncEngineDeadError: Background loop has errored already.": "lower",
    },
}


@pytest.mark.parametrize(
    ("line", "remedy", "code"), [(*line, code) for code, lines in WORDINGS.items() for line in lines.items()]
)
def test_the_wording_of_every_version(line, remedy, code):
    variants = {
        "plain": line,
        "V0": f"ERROR 12-02 10:10:10 engine.py:366] {line}",
        "worker": f"(VllmWorker rank=0 pid=7) ERROR 12-02 10:10:10 [core.py:9] {line}",
        "coloured": f"\x1b[1;36m(EngineCore_DP0 pid=7)\x1b[0;0m ERROR 12-02 10:10:10 [core.py:9] {line}\r",
        "two prefixes": f"(APIServer pid=1) (EngineCore pid=7) {line}",
        "rank": f"[rank0]: {line}",
        "JSON": json.dumps({"asctime": "x", "levelname": "ERROR", "message": line}),
        "JSON with a traceback": json.dumps(
            {"levelname": "ERROR", "message": "failed", "exc_info": f"{TRACE}\n{line}"}
        ),
        "own prefix": f"my server | {line}",
    }
    for name, text in variants.items():
        failure = classify(f"INFO 12-02 10:10:09 [x.py:1] starting\n{text}\nbye")
        assert failure.code == code, name
        assert remedy in failure.remedy, name
        assert failure.last_lines[-1] == "bye"
        assert "\x1b" not in "".join(failure.last_lines) + failure.message


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ([TRACE, CORE, frame("load_model"), OOM], "oom-weights"),
        ([TRACE, CORE, frame("compile_or_warm_up_model"),
          frame("capture_model"), frame("_dummy_run"), OOM], "oom-graphs"),
        ([TRACE, frame("initialize_cache"), frame("_warm_up_model"), frame("capture_model"),
          "RuntimeError: CUDA error: out of memory"], "oom-graphs"),
        ([TRACE, CORE, frame("profile_run"), frame("_dummy_sampler_run"), OOM], "oom-sampler"),
        ([TRACE, CORE, frame("determine_available_memory"), frame("profile_run"), OOM],
         "oom-other"),
        ([TRACE, CORE, frame("initialize_kv_cache"), frame("_allocate_kv_cache_tensors"), OOM],
         "oom-other"),
        (["INFO 01-01 00:00:00 [x.py:1] Starting to load model m...", OOM], "oom-weights"),
        (["Loading model weights took 15.2 GB", "INFO Capturing the model for CUDA graphs. This may lead to", OOM],
         "oom-graphs"),
        (["Model loading took 15.2 GiB and 9 seconds", OOM], "oom-other"),
        ([OOM], "oom-other"),
        ([READY, "Dumping scheduler output for model execution: x", "EngineCore encountered a fatal error.", TRACE,
          frame("execute_model"), OOM, DEAD], "crash-under-load"),
        ([READY, TRACE, frame("execute_model"), "torch.cuda.OutOfMemoryError: HIP out of memory."], "crash-under-load"),
    ],
)  # fmt: skip
def test_out_of_memory_is_told_by_what_vllm_was_doing(log, code):
    prefixed = "\n".join(
        f"(EngineCore pid=7) ERROR 12-02 10:10:10 [core.py:9] {line}" for line in "\n".join(log).split("\n")
    )
    assert classify("\n".join(log)).code == code
    assert classify(prefixed).code == code


def test_the_first_cause_is_told_not_what_follows_from_it():
    fatal = "EngineCore encountered a fatal error."
    log = [READY, fatal, TRACE, frame("execute_model"), "AssertionError: 5 <= 4", DEAD]
    assert classify("\n".join(log)).message == "the engine died under load: AssertionError: 5 <= 4"
    missing = "ModuleNotFoundError: No module named 'nowhere'"
    log = [
        TRACE,
        frame("get_scheduler_cls"),
        missing,
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    failure = classify("\n".join(log))
    assert failure.code == "unsupported-scheduler"
    assert failure.message.endswith(missing)


def test_a_warning_at_the_start_is_not_the_cause_of_a_later_death():
    warning = "WARNING huggingface_hub.errors.LocalEntryNotFoundError: no generation_config.json"
    assert classify(f"{warning}\n{READY}\n{DEAD}").code == "crash-under-load"
    assert classify("\n".join([warning, TRACE, frame("load_model"), OOM])).code == "oom-weights"
    assert classify(f"{warning}\n{READY}", -9).code == "killed"


def test_hints_that_speak_of_memory_are_no_failure():
    log = """Capturing cudagraphs for decoding. If out-of-memory error occurs during cudagraph capture, consider
    ERROR Error parsing config for m: Unrecognized model in m. Should have a `model_type` key, retrying 1 of 2"""
    assert classify(log).code == "unknown"


@pytest.mark.parametrize(
    ("exit_code", "timed_out", "code", "word"),
    [
        (-9, False, "killed", "SIGKILL"),
        (137, False, "killed", "SIGKILL"),
        (-11, False, "killed", "SIGSEGV"),
        (143, False, "killed", "SIGTERM"),
        (None, True, "timeout", "in time"),
        (1, False, "unknown", "exit code 1"),
        (0, False, "unknown", "exit code 0"),
        (255, False, "unknown", "exit code 255"),
        (None, False, "unknown", "failed"),
    ],
)
def test_without_a_word_in_the_log_the_exit_decides(exit_code, timed_out, code, word):
    failure = classify("", exit_code, timed_out=timed_out)
    assert failure.code == code
    assert word in failure.message
    assert failure.remedy
    assert failure.last_lines == ()


def test_a_known_cause_counts_more_than_a_time_out_or_a_kill():
    assert classify(f"{TRACE}\n{frame('load_model')}\n{OOM}", None, timed_out=True).code == "oom-weights"
    assert classify(f"{TRACE}\n{frame('load_model')}\n{OOM}", -9).code == "oom-weights"


def test_the_last_lines_are_few_and_a_long_message_is_cut():
    failure = classify("\n".join(f"line {i}" for i in range(99)) + "\n\nKeyError: " + "x" * 999)
    assert len(failure.last_lines) == NUM_LAST_LINES
    assert failure.last_lines[-2] == "line 98"
    assert failure.message.startswith("the server ended with exit code 1: KeyError: xxx")
    assert len(failure.message) < 400


def test_json_that_is_no_log_record_is_kept_as_it_is():
    assert classify('{"a": 1}\n{broken\n{"message": 3}\n[1]').last_lines == (
        '{"a": 1}',
        "{broken",
        '{"message": 3}',
        "[1]",
    )


def test_json_that_is_nested_too_deeply_is_kept_as_it_is():
    line = '{"a":' * 100_000
    assert classify(line).last_lines == (line,)


def test_of_a_line_without_end_the_beginning_counts():
    line = f"torch.OutOfMemoryError: CUDA out of memory. {'9' * 100_000}"
    assert classify(line).code == classify(line[:100]).code


@pytest.mark.parametrize("memory", ["20.1/0.", "20.1/0.0", f"{'9' * 400}/1.0", f"1/{'9' * 400}", "1.2.3/4.5.6"])
def test_memory_that_makes_no_share_still_gives_a_remedy(memory):
    text = f"Free memory on device ({memory} GiB) on startup is less than desired GPU memory utilization (0.9)"
    assert classify(text).remedy
    assert "nan" not in classify(text).remedy
