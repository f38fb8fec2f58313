"""Tables of rows: what is equal, what is best, and what was never tested. Shapes from public tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.bench_results import compare, judge
from maitre.bench_results.records import Run


def row(seqs=None, speed=None, **more):
    return {"max_num_seqs": seqs, "total_tokens_per_s": speed} | more


def test_settings_above_the_clients_concurrency_are_one_setting(surface_of):
    speeds = {8: 6630.1, 32: 12480.2, 64: 12540.3, 128: 12523.4}
    surface = surface_of(*(row(seqs, speed, concurrency=16) for seqs, speed in speeds.items()))
    assert (surface.verdict, surface.best_rows, surface.separable_worse_rows) == ("client-capped", (1, 2, 3), (0,))
    assert (surface.recommend, surface.equal_rows) == ({"max_num_seqs": 32}, (1, 2, 3))
    assert surface.noise_rel == pytest.approx(60.1 / 12514.6, rel=0.01)


def test_each_client_load_is_judged_on_its_own(surface_of):
    rows = [row(seqs, 3400.0 + seqs / 10, concurrency=8) for seqs in (64, 128, 256)]
    rows += [row(seqs, 3830.0 + seqs / 10, concurrency=32) for seqs in (64, 128, 256)]
    surface = surface_of(*rows)
    assert (surface.verdict, surface.recommend) == ("client-capped", {"max_num_seqs": 64})
    assert set(surface.groups) == {"concurrency=8", "concurrency=32"}


def test_growth_up_to_the_largest_value_with_a_waiting_client_is_seq_capped(surface_of):
    surface = surface_of(*(row(seqs, 100.3 * seqs, concurrency=512) for seqs in (32, 64, 128)))
    assert (surface.verdict, surface.best_rows, surface.recommend) == ("seq-capped", (2,), {"max_num_seqs": 128})


def test_the_largest_value_with_an_idle_client_is_best_but_larger_ones_are_untested(surface_of):
    surface = surface_of(row(4, 233.6, concurrency=16), row(16, 648.0, concurrency=16))
    assert (surface.verdict, surface.best_rows) == ("best-cell", (1,))
    assert "untested" in surface.reasons[0]


def test_a_best_cell_inside_the_table(surface_of):
    surface = surface_of(*(row(s, v, concurrency=512) for s, v in {32: 900.1, 64: 1500.2, 128: 1200.3}.items()))
    assert (surface.verdict, surface.best_rows, surface.separable_worse_rows) == ("best-cell", (1,), (0, 2))


def test_flat_within_the_assumed_margin_takes_the_smallest_limits(surface_of):
    cells = {(64, 2048): 4986.2, (64, 4096): 5055.8, (64, 8192): 5046.3}
    surface = surface_of(*(row(s, v, max_num_batched_tokens=t) for (s, t), v in cells.items()))
    assert (surface.verdict, surface.noise_rel, surface.margin_rel) == ("flat", None, 0.02)
    assert "assumed" in surface.noise_source
    assert surface.recommend == {"max_num_seqs": 64, "max_num_batched_tokens": 2048}


def test_among_equals_a_clearly_lower_tail_comes_before_smaller_limits(surface_of):
    cells = {2048: (5000.1, 300.0), 8192: (5010.2, 150.0), 16384: (5020.3, 160.0)}
    rows = [
        row(64, speed, max_num_batched_tokens=tokens, latencies={"p99_itl_ms": tail})
        for tokens, (speed, tail) in cells.items()
    ]
    assert surface_of(*rows).recommend == {"max_num_seqs": 64, "max_num_batched_tokens": 8192}


def test_repeats_set_the_noise_floor(surface_of):
    noisy = [row(64, speed, concurrency=512) for speed in (1000.1, 1060.2, 940.3)]
    surface = surface_of(*noisy, row(128, 1050.4, concurrency=512))
    assert (surface.verdict, surface.equal_rows) == ("flat", (0, 1, 2))
    assert surface.margin_rel > 0.12


def test_one_pair_of_repeats_never_claims_less_than_two_per_cent(surface_of):
    surface = surface_of(row(64, 1000.1), row(64, 1000.2), row(128, 1015.3))
    assert (surface.verdict, surface.margin_rel) == ("flat", 0.02)


def test_repeats_that_disagree_wildly_are_named_and_are_no_noise_floor(surface_of, codes):
    rows = [row(64, speed, concurrency=512) for speed in (1586.1, 3775.2)] + [row(128, 3800.3, concurrency=512)]
    surface = surface_of(*rows)
    assert "repeats-disagree" in codes(surface)
    assert surface.margin_rel == 0.02


def test_copied_rows_are_found_and_the_best_of_them_is_not_recommended(surface_of):
    latency = {"mean_ttft_ms": 1831.81}
    surface = surface_of(
        row(512, 11333.89, latencies=latency), row(256, 9019.18), row(1024, 11333.89, latencies=latency)
    )
    assert (surface.verdict, surface.duplicate_rows, surface.recommend) == ("duplicate-rows", (0, 2), None)


def test_round_figures_may_be_equal_by_chance(surface_of):
    surface = surface_of(row(32, requests_per_s=0.46), row(64, requests_per_s=0.46))
    assert (surface.verdict, surface.duplicate_rows) == ("flat", ())


def test_a_ladder_that_still_grows_is_not_saturated(surface_of):
    rows = [row(256, 100.3 * c, concurrency=c, latencies={"mean_e2el_ms": 1000.0 + c}) for c in (10, 20, 50)]
    surface = surface_of(*rows)
    assert (surface.verdict, surface.recommend) == ("not-saturated", None)
    assert surface.latency_growth == pytest.approx(1050 / 1010)


def test_an_offered_rate_that_every_row_serves_tests_no_limit(surface_of):
    rows = [row(s, 4867.1 + s, requests_per_s=7.9, request_rate=8.0) for s in (64, 128, 256)]
    assert surface_of(*rows).verdict == "not-saturated"


def test_a_constant_tail_over_a_ladder_means_that_the_client_never_sent_it(surface_of, codes):
    measured = {
        10: (1902.1, 9.24),
        50: (6961.2, 12.5),
        100: (11198.3, 15.46),
        200: (11193.4, 15.46),
        1000: (11218, 15.43),
    }
    rows = [
        row(2048, speed, concurrency=c, latencies={"p99_e2el_ms": 1000 * tail}) for c, (speed, tail) in measured.items()
    ]
    surface = surface_of(*rows)
    assert (surface.verdict, surface.suspicious_rows) == ("client-capped", (3, 4))
    assert "client-never-sent-it" in codes(surface)


def test_a_ladder_whose_latency_grows_with_the_clients_is_saturated(surface_of):
    rows = [row(64, 1000.1 + c / 100, concurrency=c, latencies={"p99_e2el_ms": 100.0 * c}) for c in (64, 128, 256, 512)]
    surface = surface_of(*rows)
    assert (surface.verdict, surface.suspicious_rows) == (None, ())
    assert "one setting" in surface.reasons[0]


def test_memory_that_turns_the_answer_gives_no_single_best(surface_of):
    cells = {(2, 2048): 1438.5, (2, 8192): 1054.1, (4, 2048): 2994.2, (4, 8192): 3353.3}
    rows = [
        row(None, speed, max_num_batched_tokens=tokens, settings={"tensor_parallel_size": tp})
        for (tp, tokens), speed in cells.items()
    ]
    surface = surface_of(*rows)
    assert (surface.verdict, surface.best_rows, surface.recommend) == ("depends-on-memory", (), None)
    assert {name: group.best_rows for name, group in surface.groups.items()} == {
        "tensor_parallel_size=2": (0,),
        "tensor_parallel_size=4": (3,),
    }


def test_groups_that_agree_have_one_answer(surface_of):
    rows = [row(s, v * tp, concurrency=512, settings={"tensor_parallel_size": tp})
            for tp in (2, 4) for s, v in ((64, 500.1), (128, 900.2), (256, 700.3))]  # fmt: skip
    surface = surface_of(*rows)
    assert (surface.verdict, surface.best_rows, surface.recommend) == ("best-cell", (1, 4), {"max_num_seqs": 128})


def test_two_causes_at_once_are_named(surface_of, codes):
    surface = surface_of(row(4, 31.25, settings={"util": 1}), row(8, 43.75, settings={"util": 2}))
    assert "two-causes" in codes(surface)


def test_rows_with_failures_are_left_out_and_named(surface_of, codes):
    good = {"successful": 100, "failed": 0}
    rows = [row(64, 1000.1, **good), row(128, 9000.2, successful=50, failed=50), row(256, 1100.3, **good)]
    surface = surface_of(*rows)
    assert (surface.best_rows, surface.suspicious_rows, surface.trust) == ((2,), (1,), True)
    assert "row-not-comparable" in codes(surface)


def test_an_unlabelled_token_rate_is_not_ranked_with_a_labelled_one(surface_of, codes):
    rows = [row(64, 5000.1, requests_per_s=10.0), {"max_num_seqs": 128, "tokens_per_s": 9000.2, "requests_per_s": 9.0}]
    surface = surface_of(*rows)
    assert (surface.metric, surface.best_rows) == ("requests_per_s", (0,))
    assert "unlabelled-token-rate" in codes(surface)


def test_different_requests_or_models_are_not_compared(surface_of, codes):
    totals = {"successful": 100, "duration_s": 10.0, "requests_per_s": 10.0}
    rows = [row(64, None, total_input_tokens=10_000, total_output_tokens=5000, **totals),
            row(128, None, total_input_tokens=99_000, total_output_tokens=5000, **totals)]  # fmt: skip
    surface = surface_of(*rows)
    assert (surface.trust, "different-requests" in codes(surface)) == (False, True)
    surface = surface_of(row(64, 5000.1, settings={"model": "a"}), row(128, 5500.2, settings={"model": "b"}))
    assert (surface.trust, "different-models" in codes(surface)) == (False, True)


def test_several_tools_are_ranked_by_totals_over_duration():
    totals = {"successful": 100, "duration_s": 10.0, "total_input_tokens": 60_000, "total_output_tokens": 40_000}
    serve = Run(source="a", tool="vllm bench serve", max_num_seqs=64, total_tokens_per_s=10_000, **totals)
    guide = Run(source="b", tool="GuideLLM", max_num_seqs=128, total_tokens_per_s=10_900, **totals)
    surface = compare([judge(serve), judge(guide)])
    assert (surface.metric, surface.verdict) == ("recomputed_total_tokens_per_s", "flat")


def test_no_usable_row_is_an_answer_not_a_crash(surface_of):
    surface = surface_of({"failure": "out of memory"}, {"failure": "timed out"})
    assert (surface.verdict, surface.trust, surface.suspicious_rows) == (None, False, (0, 1))


@given(
    speeds=st.lists(st.integers(1000, 9000), min_size=2, max_size=7, unique=True),
    scale=st.sampled_from([0.5, 2.0, 1024.0]),
)
def test_the_verdict_does_not_depend_on_the_unit(speeds, scale):
    def surface(factor):
        rows = [row(32 * 2**number, (speed + 0.25) * factor) for number, speed in enumerate(speeds)]
        return compare([judge(Run(source="x", tool="table", **values)) for values in rows])

    one, other = surface(1.0), surface(scale)
    assert (one.verdict, one.best_rows, one.separable_worse_rows) == (
        other.verdict,
        other.best_rows,
        other.separable_worse_rows,
    )
    assert sorted((*one.best_rows, *one.separable_worse_rows)) == [
        number for number in range(len(speeds)) if number in {*one.best_rows, *one.separable_worse_rows}
    ]
