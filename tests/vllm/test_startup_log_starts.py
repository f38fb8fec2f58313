"""Several starts in one log: restarts, crash loops, slow engines."""

BANNER = "(APIServer pid={pid}) INFO 06-01 00:00:00 [api_server.py:1] vLLM API server version 0.10.2\n"


def test_a_restarted_server_is_another_start(args_line, pool_lines, read_log):
    text = "".join(
        BANNER.format(pid=pid) + args_line(max_num_seqs=pid) + pool_lines("(EngineCore_DP0 pid=9) ", pid * 10)
        for pid in (4, 5)
    )
    assert [(s.max_num_seqs, s.kv_cache_tokens) for s in read_log(text)] == [(4, 40), (5, 50)]


def test_a_crash_loop_that_never_gets_to_the_engine(args_line, read_log):
    error = "ValueError: max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64).\n"
    startups = read_log((BANNER.format(pid=1) + args_line(max_num_seqs=64, max_num_batched_tokens=32) + error) * 3)
    assert [startup.failure for startup in startups] == ["refused-setting"] * 3
    assert "raise --max-num-batched-tokens to 64" in startups[0].remedy


def test_a_slow_engine_is_no_second_start(one_start, pool_lines):
    weights = "INFO 06-01 00:00:00 [gpu_model_runner.py:1] Model loading took 14.2 GiB and 5.1 seconds\n"
    memory = "INFO 06-01 00:00:00 [gpu_worker.py:1] Available KV cache memory: 54.0 GiB\n"
    fast, slow = "(EngineCore_DP0 pid=2) ", "(EngineCore_DP1 pid=3) "
    text = "".join(tag + weights + tag + memory + pool_lines(tag, 5000) for tag in (fast, slow))
    assert one_start(text).kv_cache_tokens == 10_000


def test_in_one_process_the_arguments_begin_a_start(args_line, pool_lines, read_log):
    text = "".join(
        args_line(max_num_seqs=n) + "INFO Model loading took 1 GiB and 2 seconds\n" + pool_lines("", n)
        for n in (5000, 6000)
    )
    assert [startup.kv_cache_tokens for startup in read_log(text)] == [5000, 6000]


def test_a_failed_start_hands_nothing_on(args_line, pool_lines, read_log):
    failed = args_line(max_num_seqs=7) + pool_lines("", 5000) + "ERROR EngineCore failed to start.\n"
    text = failed + args_line(max_model_len=9)
    assert [(s.kv_cache_tokens, s.failure, s.max_num_seqs) for s in read_log(text)] == [
        (5000, "unknown", 7),
        (None, None, None),
    ]


def test_an_error_that_it_survives_is_no_end(args_line, one_start, pool_lines):
    warning = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'vllm._C'\n"
    weights = "INFO 06-01 00:00:00 [gpu_model_runner.py:1] Model loading took 14.2 GiB and 5.1 seconds\n"
    startup = one_start(warning + args_line(max_num_seqs=7) + warning + weights + warning + pool_lines("", 5000))
    assert (startup.max_num_seqs, startup.kv_cache_tokens, startup.failure) == (7, 5000, None)


def test_a_command_that_is_echoed_twice_is_one_start(args_line, one_start, pool_lines):
    command = "vllm serve m --max-num-seqs 7\n"
    startup = one_start("Running: " + command + "+ exec " + command + args_line(port=1) + pool_lines("", 5000))
    assert (startup.max_num_seqs, startup.kv_cache_tokens) == (7, 5000)


def test_running_out_of_memory_under_load_is_no_failed_start(one_start, pool_lines):
    stats = "INFO 06-01 00:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Running: 1 reqs\n"
    out_of_memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB\n"
    startup = one_start(pool_lines("", 5000) + stats + out_of_memory)
    assert (startup.failure, startup.is_ready) == ("crash-under-load", True)


def test_what_a_server_says_while_it_is_stopped_is_no_failure(one_start, pool_lines):
    ready = pool_lines("", 5000) + "INFO:     Application startup complete.\n"
    stop = (
        "(EngineCore pid=7) INFO 11-29 20:07:25 [core.py:1454] [shutdown] EngineCore: trigger received signal=SIGTERM\n"
    )
    dead = (
        "ERROR 11-29 20:07:25 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an\n"
    )
    assert one_start(ready + stop + dead).failure is None
    assert one_start(ready + dead + stop).failure == "crash-under-load"
