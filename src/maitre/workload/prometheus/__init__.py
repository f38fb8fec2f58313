"""Prometheus as a source: vLLM's own histograms of prompt and output lengths, and what its gauges and counters add.

question (window and labels) → families (what vLLM's metrics are called there, and what they counted) → served (all that
tells the traffic of one model) → profile with bounds and doubts, or source: requests drawn from it.
"""

from maitre.workload.prometheus.bounds import BoundedStatistics, Bounds
from maitre.workload.prometheus.profile import MetricsProfile, describe_served
from maitre.workload.prometheus.served import Served
from maitre.workload.prometheus.source import draw_served, read_prometheus

__all__ = [
    "BoundedStatistics",
    "Bounds",
    "MetricsProfile",
    "Served",
    "describe_served",
    "draw_served",
    "read_prometheus",
]
