"""Many ranks, engines and servers in one log: what is one pool, what adds up, what must not be mixed."""


def test_tensor_parallel_lines_are_one_pool(one_start, pool_lines):
    startup = one_start("".join(pool_lines(f"(VllmWorker rank={i} pid={i + 9}) ", 5000) for i in range(4)))
    assert (startup.kv_cache_tokens, startup.max_concurrency) == (5000, 5.0)
    assert startup.combine_rule == "one of repeated TP lines"


def test_data_parallel_engines_add_up_and_each_is_listed(one_start, pool_lines):
    startup = one_start(pool_lines("(EngineCore_DP0 pid=2) ", 5000) + pool_lines("(EngineCore_DP1 pid=3) ", 3000))
    assert (startup.kv_cache_tokens, startup.max_concurrency, startup.combine_rule) == (
        8000,
        8.0,
        "sum over DP engines",
    )
    assert [cache.kv_cache_tokens for cache in startup.by_engine] == [5000, 3000]


def test_the_engines_of_0_8_5_each_print_their_tensor_parallel_ranks(one_start, pool_lines):
    text = "".join(pool_lines(f"(EngineCore_{dp} pid={dp}) ", 1000 * (dp + 1)) for dp in (0, 1) for _ in range(4))
    assert one_start(text).kv_cache_tokens == 3000


def test_data_parallel_workers_of_a_pipeline(one_start, pool_lines):
    text = "".join(
        pool_lines(f"(Worker_DP{dp}_PP{pp}_TP{tp} pid={dp}{pp}{tp}) ", 1000 + 500 * pp + dp)
        for dp in (0, 1) for pp in (0, 1) for tp in (0, 1)
    )  # fmt: skip
    startup = one_start(text)
    assert (startup.kv_cache_tokens, startup.combine_rule) == (2001, "sum over DP engines")


def test_a_reprint_by_the_same_engine_counts_once(one_start, pool_lines):
    startup = one_start(pool_lines("(EngineCore_DP0 pid=2) ", 5000) + pool_lines("(EngineCore_DP1 pid=3) ", 5000) * 2)
    assert startup.kv_cache_tokens == 10_000


def test_a_lone_engine_tagged_dp0_is_no_deployment(one_start, pool_lines):
    startup = one_start(pool_lines("(EngineCore_DP0 pid=2) ", 5000))
    assert (startup.kv_cache_tokens, startup.combine_rule, startup.engines) == (5000, None, 1)


def test_engines_without_tags_are_known_from_the_flags(args_line, one_start, pool_lines):
    same = one_start(args_line(data_parallel_size=2) + pool_lines("", 5000) + pool_lines("", 5000))
    assert (same.kv_cache_tokens, same.combine_rule) == (10_000, "sum over DP engines")
    uneven = one_start(args_line(data_parallel_size=2) + pool_lines("", 5000) + pool_lines("", 3000))
    assert (uneven.kv_cache_tokens, uneven.max_concurrency) == (8000, 8.0)
    ranks = one_start(args_line(data_parallel_size=2, tensor_parallel_size=2) + pool_lines("", 5000) * 4)
    assert ranks.kv_cache_tokens == 10_000


def test_one_node_of_many_shows_its_own_engines_only(args_line, one_start, pool_lines):
    here = pool_lines("(EngineCore_DP2 pid=2) ", 5000) + pool_lines("(EngineCore_DP3 pid=3) ", 1)
    startup = one_start(args_line(data_parallel_size=4) + here)
    assert startup.kv_cache_tokens == 5001
    assert "2 of 4" in " ".join(startup.notes)
    assert (
        one_start(args_line(data_parallel_size=4, data_parallel_rank=1) + pool_lines("", 5000)).kv_cache_tokens == 5000
    )


def test_the_poorest_gpu_decides_the_memory(one_start):
    lines = "".join(f"(Worker_TP{i} pid={i}) INFO Available KV cache memory: {9 - i}.25 GiB\n" for i in range(4))
    assert one_start(lines).available_kv_gib == 6.25


def test_pods_are_servers_of_their_own(pool_lines, read_log):
    text = "".join(f"[pod/vllm-{i}/vllm] {line}\n" for i in (0, 1) for line in pool_lines("", 5000 + i).splitlines())
    assert [(startup.place, startup.kv_cache_tokens) for startup in read_log(text)] == [
        ("pod/vllm-0/vllm", 5000),
        ("pod/vllm-1/vllm", 5001),
    ]


def test_interleaved_pods_do_not_mix(pool_lines, read_log):
    first, second = pool_lines("", 5000).splitlines(), pool_lines("", 7000).splitlines()
    text = "".join(f"vllm-1  | {a}\nvllm-2  | {b}\n" for a, b in zip(first, second, strict=True))
    assert [startup.max_concurrency for startup in read_log(text)] == [5.0, 7.0]


def test_a_level_before_a_bar_is_no_server(one_start):
    text = "INFO | GPU KV cache size: 5,000 tokens\nERROR | EngineCore failed to start.\n"
    assert (one_start(text).kv_cache_tokens, one_start(text).failure, one_start(text).place) == (5000, "unknown", "")


def test_more_names_than_servers_are_no_names(read_log):
    lines = "".join(f"{i}-{i} | GPU KV cache size: 5,000 tokens\n" for i in range(500))
    assert len(read_log(lines)) <= 65


def test_a_pool_of_no_blocks_tells_nothing_of_their_size(one_start):
    text = "# GPU blocks: 0, # CPU blocks: 0\nMaximum concurrency for 32768 tokens per request: 0.00x\n"
    assert (one_start(text).num_gpu_blocks, one_start(text).block_size) == (0, None)
