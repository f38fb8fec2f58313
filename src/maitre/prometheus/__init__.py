"""Prometheus' HTTP API, as Prometheus, VictoriaMetrics, Mimir and Thanos answer it."""
