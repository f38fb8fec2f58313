"""What people have measured already: benchmark files become judged runs, and several runs a surface.

reading (which tool wrote it) → vllm_text, vllm_json, auto_tune, guidellm, aiperf, tables (figures) → judge (may it be
compared) → surface (which setting is best, and is that more than noise).
"""

from maitre.bench_results.judge import judge
from maitre.bench_results.reading import read_results
from maitre.bench_results.records import BenchmarkResult, GroupVerdict, Run, Surface
from maitre.bench_results.surface import compare

__all__ = ["BenchmarkResult", "GroupVerdict", "Run", "Surface", "compare", "judge", "read_results"]
