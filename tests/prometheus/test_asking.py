"""What a Prometheus API is asked, and as whom."""

import base64
import re
import subprocess

import pytest

from maitre.errors import InputError, SystemFailure, UsageError
from maitre.prometheus.access import Access
from maitre.prometheus.client import PrometheusClient


def basic(login):
    return "Basic " + base64.b64encode(login.encode()).decode()


def sent(api, url="", **access):
    PrometheusClient(url or api.url, Access(**access)).query("up")
    return api.asked[-1]["headers"]


def test_the_path_before_the_api_is_kept(api):
    for path in ("", "/", "/prometheus", "/prometheus/", "/select/0/prometheus", "/prometheus/api/v1", "/a%20b"):
        PrometheusClient(api.url + path).query("up", 12.5)
        before = path.rstrip("/").removesuffix("/api/v1")
        assert api.asked[-1]["path"] == f"{before}/api/v1/query"
        assert api.asked[-1]["params"] == [("query", "up"), ("time", "12.500")]


def test_a_query_in_the_address_goes_with_every_request(api):
    client = PrometheusClient(f"{api.url}/x?dedup=true&extra_label=team%3Da")
    client.query("up")
    api.say({"status": "success", "data": ["a"]})
    assert client.label_values("__name__", ['{a="b"}', "c"], 1, 2) == ["a"]
    for asked in api.asked:
        assert asked["params"][:2] == [("dedup", "true"), ("extra_label", "team=a")]
    assert api.asked[-1]["path"] == "/x/api/v1/label/__name__/values"
    window = [("match[]", '{a="b"}'), ("match[]", "c"), ("start", "1.000"), ("end", "2.000")]
    assert api.asked[-1]["params"][2:] == window
    assert client.num_requests == 2


def test_a_long_question_is_posted(api):
    client = PrometheusClient(api.url)
    expr = " or ".join(["up"] * 600)
    client.query(expr)
    assert (api.asked[-1]["method"], dict(api.asked[-1]["params"])["query"]) == ("POST", expr)
    client.query("up")
    assert api.asked[-1]["method"] == "GET"


def test_a_gateway_that_allows_no_post_is_asked_again(api):
    api.say(b"no", status=405)
    api.then({"status": "success", "data": {"resultType": "vector", "result": []}})
    assert PrometheusClient(api.url).query("up" + " or up" * 600) == []
    assert [asked["method"] for asked in api.asked] == ["POST", "GET"]


def test_a_login_in_the_address(api):
    headers = sent(api, api.url.replace("//", "//us%40er:se%3Acret@"))
    assert headers["authorization"] == basic("us@er:se:cret")


def test_the_login_options_come_before_the_address(api):
    url = api.url.replace("//", "//a:b@")
    assert sent(api, url, user="c", password="d")["authorization"] == basic("c:d")
    assert sent(api, url, bearer_token="t")["authorization"] == "Bearer t"
    assert sent(api, url, headers=(("authorization", "Own x"),))["authorization"] == "Own x"


def test_a_token_file_is_read_again_for_every_request(api, tmp_path):
    path = tmp_path / "token"
    client = PrometheusClient(api.url, Access(bearer_token_file=path))
    for token in ("first", "second"):
        path.write_text(token + "\n")
        client.query("up")
        assert api.asked[-1]["headers"]["authorization"] == f"Bearer {token}"
    path.unlink()
    with pytest.raises(InputError, match=r"token: cannot be used \(No such file"):
        client.query("up")


def test_a_tenant_and_further_headers(api):
    headers = sent(api, tenant="a|b", headers=(("X-One", "1"), ("X-Two", "2")))
    assert (headers["x-scope-orgid"], headers["x-one"], headers["x-two"]) == ("a|b", "1", "2")


def test_a_netrc_file_is_nobodys_login(api, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert "authorization" not in sent(api)


@pytest.mark.parametrize("header", [("", "x"), ("a b", "x"), ("a", "x\r\nEvil: y")])
def test_a_header_that_cannot_be_sent(api, header):
    with pytest.raises(UsageError, match="cannot be sent"):
        sent(api, headers=(header,))


@pytest.mark.parametrize("url", ["", "localhost:9090", "ftp://a", "http://", "http://a:b:c", "http://a b", "file:///x"])
def test_what_is_no_address(url):
    with pytest.raises(UsageError, match="not the address"):
        PrometheusClient(url)


def test_no_password_is_ever_shown(api):
    access = Access(password="hidden1", bearer_token="hidden2", headers=(("a", "hidden3"),))
    client = PrometheusClient(api.url.replace("//", "//user:hidden4@") + "?token=hidden5", access)
    shown = [client.address, repr(access), repr(client), repr(client._address)]
    for status in (200, 302, 400, 401, 404, 422, 500):
        api.say(b"<html>", status, {"Location": "https://user:hidden6@b/c?token=hidden7"})
        with pytest.raises((InputError, SystemFailure)) as told:
            client.query("up")
        shown.append(str(told.value))
    api.stop()
    with pytest.raises(SystemFailure, match="nothing listens") as told:
        client.query("up")
    shown.append(str(told.value))
    assert not re.search("hidden", " ".join(shown))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """One file each with a key and a certificate that speaks for itself: of 127.0.0.1, and of a client."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("server", "client"):
        command = [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt"),
        ]
        subprocess.run(command, check=True, capture_output=True)
        both = (folder / f"{name}.key").read_text() + (folder / f"{name}.crt").read_text()
        (folder / f"{name}.pem").write_text(both)
    return folder


def test_only_a_trusted_server_is_asked(start_api, certificates):
    api = start_api(certificate=certificates / "server.pem")
    with pytest.raises(SystemFailure, match="certificate is not trusted") as told:
        sent(api)
    assert "--ca-file" in told.value.hint
    assert sent(api, ca_file=certificates / "server.crt")
    assert sent(api, insecure=True)
    with pytest.raises(SystemFailure, match="not trusted"):
        sent(api, ca_file=certificates / "client.crt")


def test_a_client_certificate(start_api, certificates):
    api = start_api(certificate=certificates / "server.pem", client_ca=certificates / "client.crt")
    trusted = {"ca_file": certificates / "server.crt"}
    assert sent(api, **trusted, client_cert=certificates / "client.pem")
    assert sent(api, **trusted, client_cert=certificates / "client.crt", client_key=certificates / "client.key")
    with pytest.raises(SystemFailure):
        sent(api, **trusted)
    with pytest.raises(InputError, match=r"client\.crt: cannot be used"):
        sent(api, **trusted, client_cert=certificates / "client.crt")
    with pytest.raises(InputError, match=r"gone: cannot be used"):
        sent(api, ca_file=certificates / "gone")


def test_https_to_a_server_that_speaks_http(api):
    with pytest.raises(SystemFailure, match="no TLS connection"):
        sent(api, api.url.replace("http:", "https:"))
