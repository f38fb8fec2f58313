"""What the tests of start-up logs share: reading one, and lines that vLLM prints."""

import pytest

from maitre.vllm.startup_log import read_startups


@pytest.fixture(scope="session")
def read_log():
    """Reads a log; returns its starts."""

    def read(text, name="server.log"):
        return read_startups([text.encode() if isinstance(text, str) else text], name)

    return read


@pytest.fixture(scope="session")
def one_start(read_log):
    """Reads a log of one start."""

    def read(text):
        (startup,) = read_log(text)
        return startup

    return read


@pytest.fixture(scope="session")
def pool_lines():
    """The two lines of a pool, each with a process's tag before it."""

    def lines(tag, tokens, length=1000):
        return (
            f"{tag}INFO 06-01 00:00:00 [kv_cache_utils.py:1710] GPU KV cache size: {tokens:,} tokens\n"
            f"{tag}INFO 06-01 00:00:00 [kv_cache_utils.py:1711] Maximum concurrency for {length:,} tokens per request: "
            f"{tokens / length:.2f}x\n"
        )

    return lines


@pytest.fixture(scope="session")
def args_line():
    """The dump of the arguments that were set."""

    def line(**flags):
        return f"(APIServer pid=1) INFO 06-01 00:00:00 [utils.py:1] non-default args: {flags}\n"

    return line
