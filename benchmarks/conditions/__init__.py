"""Simulated vLLM servers under known conditions, and the metrics that they would expose: to try `maitre verify` on."""
