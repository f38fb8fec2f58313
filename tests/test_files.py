"""Reading files: what is wrong is said in one sentence that names the file and the place in it."""

import pytest

from maitre.errors import InputError
from maitre.files import decode_text, load_json, parse_json, read_bytes, read_json, read_text


def test_a_good_file_is_read_as_it_is(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": "\xc3\xb6"}\n')
    assert read_bytes(path) == b'\xef\xbb\xbf{"a": "\xc3\xb6"}\n'
    assert read_text(path) == '{"a": "ö"}\n'
    assert read_json(path) == {"a": "ö"}


@pytest.mark.parametrize("content", [b"", b" \n\t\n"])
def test_an_empty_file_is_refused(tmp_path, content):
    path = tmp_path / "empty"
    path.write_bytes(content)
    with pytest.raises(InputError, match="empty: the file is empty"):
        read_bytes(path)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    with pytest.raises(InputError, match="nowhere: no such file"):
        read_bytes(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no such file"):
        read_bytes(tmp_path / "null\0byte")
    with pytest.raises(InputError, match="is a directory, a file was expected"):
        read_bytes(tmp_path)


def test_another_encoding_is_refused_with_its_line():
    with pytest.raises(InputError, match=r"a\.csv, line 2: byte 0xf6 is not UTF-8"):
        decode_text("name\nMöller\n".encode("latin-1"), "a.csv")
    with pytest.raises(InputError, match=r"a\.csv: binary data, text was expected"):
        decode_text("name\n".encode("utf-16"), "a.csv")


@pytest.mark.parametrize("text", ['{"a": 1', '{"a": [1, 2', '{"a": "un', '{"a":', "["])
def test_json_that_ends_too_early_is_called_truncated(text):
    with pytest.raises(InputError, match=r"a\.json, line 1, column \d+: .*truncated"):
        parse_json(text, "a.json")


def test_broken_json_is_refused_with_line_and_column():
    with pytest.raises(InputError, match=r"a\.json, line 2, column 5: not valid JSON"):
        parse_json('{"a": 1,\n"b" 2}\n\n', "a.json")


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000], ids=["deep", "long"])
def test_json_that_python_gives_up_on_is_refused(text):
    with pytest.raises(InputError, match=r"a\.json"):
        parse_json(text, "a.json")


def test_every_refusal_has_a_hint(tmp_path):
    for content in (b"", b"\0", b"\xf6", b"{"):
        (tmp_path / "f").write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_json(tmp_path / "f")
        assert caught.value.hint
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud800"', "\ufffd"),
        (r'"a\uDFFFb"', "a\ufffdb"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (r'"\\ud800"', r"\ud800"),
        (r'"\\\ud800\""', '\\\ufffd"'),
        (b'{"\\ud800": "\xc3\xb6"}', {"\ufffd": "\xf6"}),
    ],
)
def test_half_a_character_which_utf_8_cannot_hold_is_replaced(text, value):
    assert load_json(text) == value
    assert parse_json(text if isinstance(text, str) else text.decode(), "a.json") == value
