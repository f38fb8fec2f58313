"""Series of a server's metrics as `promtool test rules` reads them, a sample a minute."""

ENGINE = {"model_name": "m", "engine": "0", "job": "vllm", "instance": "a:8000"}


def series(name, values, labels=ENGINE, **more):
    """One series; values in promtool's notation: `5x60` stays, `0+3x60` grows by three a minute."""
    inside = ",".join(f'{key}="{value}"' for key, value in (labels | more).items())
    return {"series": f"{name}{{{inside}}}", "values": " ".join(map(_spelt, values.split()))}


def _spelt(word):
    return word if "+" in word or "x" not in word or word.startswith("_") else word.replace("x", "+0x")


def histogram(family, per_minute):
    """Two hours of observations: how many a minute are within each bound."""
    bounds = {**per_minute, "+Inf": max(per_minute.values())}
    return [series(f"{family}_bucket", f"0+{count}x120", le=str(bound)) for bound, count in bounds.items()]


def running(values):
    return series("vllm:num_requests_running", values)


def waiting(values, reason="capacity", **more):
    return series("vllm:num_requests_waiting_by_reason", values, reason=reason, **more)


def kv_usage(values, **more):
    return series("vllm:kv_cache_usage_perc", values, **more)


def preemptions(values, **more):
    return series("vllm:num_preemptions_total", values, **more)


def finished(values, reason="stop"):
    return series("vllm:request_success_total", values, finished_reason=reason)
