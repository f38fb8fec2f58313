"""Wrong keys, wrong host, wrong question: one error each, with the right exit code and a hint."""

import socket

import pytest

from maitre.errors import InputError, SystemFailure, UsageError

USAGE = {"input": 10, "output": 5}


def test_refused_keys(langfuse, read):
    read.environ["LANGFUSE_SECRET_KEY"] = "sk-lf-wrong"
    with pytest.raises(InputError, match="refuses the keys") as caught:
        read()
    assert "sk-lf" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("names", [("LANGFUSE_PUBLIC_KEY",), ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")])
def test_missing_keys_are_named(read, names):
    for name in names:
        del read.environ[name]
    with pytest.raises(UsageError, match=" and ".join(names) + " not set"):
        read()


@pytest.mark.parametrize("name", ["LANGFUSE_BASE_URL", "LANGFUSE_HOST"])
def test_the_host_may_come_from_the_environment(langfuse, read, make_call, name):
    langfuse.rows = [make_call(1, USAGE)]
    read.url, read.environ[name] = "", f"{langfuse.url}/"
    assert read().num_requests == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "names no host"),
        ("ftp://host", "no address"),
        ("https://", "no address"),
        ("https://pk:sk@host", "no address"),
        ("https://host:99999", "no address"),
        ("https://host?x=1", "no address"),
    ],
)
def test_what_is_no_address(read, url, message):
    read.url = url
    with pytest.raises(UsageError, match=message) as caught:
        read()
    assert "sk@" not in str(caught.value)


def test_nobody_listens(read):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        read.url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SystemFailure, match="cannot be reached") as caught:
            read()
    assert caught.value.exit_code == 3
    assert read.waits_s == []


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, {"Content-Type": "text/html"}, b"<html>Sign in</html>"),
        (200, {}, b'{"status": "ok"}'),
        (200, {}, b'{"data": [{"model": "x"}], "meta": {}}'),
        (200, {}, b'{"data": {}, "meta": {}}'),
    ],
)
def test_another_web_server(langfuse, read, status, headers, body):
    langfuse.moods = [(status, headers, body)]
    with pytest.raises(InputError, match="does not answer as Langfuse does"):
        read()


def test_a_netrc_does_not_take_the_place_of_the_keys(langfuse, read, make_call, monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    langfuse.rows = [make_call(1, USAGE)]
    assert read().num_requests == 1


def test_a_proxy_of_the_environment_is_used(langfuse, read, make_call, monkeypatch):
    monkeypatch.setenv("http_proxy", langfuse.url)
    monkeypatch.setenv("no_proxy", "")
    langfuse.rows = [make_call(1, USAGE)]
    read.url = "http://langfuse.invalid"
    assert read().num_requests == 1


def test_a_path_below_which_there_is_no_langfuse(read):
    read.url += "/nothing/here"
    with pytest.raises(InputError, match="does not answer as Langfuse does"):
        read()


def test_a_redirect_is_not_followed_with_the_keys(langfuse, read):
    langfuse.moods = [(301, {"Location": "https://elsewhere.example/"}, b"")]
    with pytest.raises(InputError, match=r"redirects to https://elsewhere\.example/"):
        read()


def test_a_refused_question_is_quoted(langfuse, read):
    langfuse.moods = [(400, {}, b'{"message": "Invalid request data", "error": [{"code": "too_big"}]}')]
    with pytest.raises(SystemFailure, match="answers 400: Invalid request data"):
        read()


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"since": "soon"}, "--since soon: no time"),
        ({"until": "2026-13-01"}, "--until 2026-13-01: no time"),
        ({"since": "2026-11-02", "until": "2026-11-01"}, "--since is not before --until"),
        ({"since": "10min"}, "15 minutes ago"),
        ({"since": "999999w"}, "no time"),
    ],
)
def test_times_that_make_no_window(read, selection, message):
    with pytest.raises(UsageError, match=message):
        read(**selection)


@pytest.mark.parametrize("where", ["qwen", "model=", "user=me", "=x"])
def test_what_is_no_filter(read, where):
    with pytest.raises(UsageError, match="no filter"):
        read(where)


def test_no_usable_generation_is_an_error_that_counts_the_reasons(langfuse, read, make_call):
    langfuse.rows = [make_call(1, {}), make_call(2, {})]
    with pytest.raises(InputError, match="2 × usage missing") as caught:
        read()
    assert "include_usage" in caught.value.hint
    assert caught.value.num_dropped == {"usage missing": 2}


def test_a_folder_that_cannot_be_written_is_named(langfuse, read, make_call, tmp_path):
    langfuse.rows = [make_call(1, USAGE)]
    (tmp_path / "file").write_text("")
    read.environ["XDG_CACHE_HOME"] = str(tmp_path / "file")
    with pytest.raises(SystemFailure, match="cannot be written") as caught:
        read()
    assert "XDG_CACHE_HOME" in caught.value.hint
