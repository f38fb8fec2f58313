"""Where metrics come from: a Prometheus API, scrapes of `/metrics`, a log; all become series under vLLM's own names."""
