"""Single lines of the text format, against the format's own reader and against everything that is no line of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from maitre.metric_series import MAX_VALUE
from maitre.vllm.exposition import MAX_LINE_CHARACTERS, _any_sample, parse_sample

LABELS = st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True), st.text(max_size=12), max_size=4)
VALUES = st.one_of(st.floats(), st.integers(-(10**15), 10**15).map(float))


def written(labels):
    def escape(text):
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{key}="{escape(value)}"' for key, value in labels.items()) + "}"


@given(LABELS, VALUES)
def test_it_reads_what_the_formats_own_reader_reads(labels, value):
    line = f"vllm:x{written(labels)} {value!r}"
    found = parse_sample(line)
    assert (found.name, dict(found.labels), found.time_s) == ("vllm:x", labels, None)
    assert found.value == value or math.isnan(value) or (math.isnan(found.value) and MAX_VALUE <= abs(value) < math.inf)
    if not any(character in "".join(labels.values()) for character in "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"):
        ((theirs,),) = (family.samples for family in text_string_to_metric_families(line))
        assert theirs.labels == labels


LINES = {
    "no labels": ("vllm:x 5", {}, 5, None),
    "empty braces": ("vllm:x{} 5", {}, 5, None),
    "a last comma": ('vllm:x{a="b",} 5', {"a": "b"}, 5, None),
    "blanks": ('vllm:x { a = "b" , c="d" }  5 ', {"a": "b", "c": "d"}, 5, None),
    "no blank before the value": ('vllm:x{a="b"}5', {"a": "b"}, 5, None),
    "milliseconds": ('vllm:x{a="b"} 5 1759200000500', {"a": "b"}, 5, 1759200000.5),
    "seconds": ('vllm:x{a="b"} 5 1759200000.5', {"a": "b"}, 5, 1759200000.5),
    "an exemplar": ('vllm:x{a="b"} 5 # {trace_id="} 7"} 1 1759200000.5', {"a": "b"}, 5, None),
    "a value in a label": ('vllm:x{a="} 7",b="{c}"} 5', {"a": "} 7", "b": "{c}"}, 5, None),
    "a hash in a label": ('vllm:x{a="# {b}"} 5', {"a": "# {b}"}, 5, None),
    "escapes": (r'vllm:x{a="\"b\" \\n \n"} 5', {"a": '"b" \\n \n'}, 5, None),
    "infinity": ('vllm:x{le="+Inf"} +Inf', {"le": "+Inf"}, math.inf, None),
    "a quoted name": ('{"vllm:x",a="b"} 5', {"a": "b"}, 5, None),
    "a quoted label": ('vllm:x{"a.b"="c"} 5', {"a.b": "c"}, 5, None),
}


@pytest.mark.parametrize(("line", "labels", "value", "time_s"), LINES.values(), ids=LINES)
def test_every_form_of_a_line(line, labels, value, time_s):
    found = parse_sample(line)
    assert (found.name, dict(found.labels), found.value, found.time_s) == ("vllm:x", labels, value, time_s)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# TYPE vllm:x gauge",
        "# EOF",
        "vllm:x",
        "vllm:x{",
        "vllm:x{} ",
        'vllm:x{a="b"',
        'vllm:x{a="b} 5',
        "vllm:x{a=b} 5",
        "vllm:x{a} 5",
        "vllm:x five",
        "vllm:x 1_000",
        "{} 5",
        "5 5",
        "vllm:x 5 5 5",
        "<html>",
        f'vllm:x{{a="{"b" * MAX_LINE_CHARACTERS}"}} 5',
    ],
)
def test_what_is_no_sample_is_none(line):
    assert parse_sample(line) is None


@given(st.text(max_size=60), st.text(alphabet='vllm:x{}"\\=,# 15.', max_size=60))
def test_the_short_way_and_the_long_way_agree(text, near):
    for line in (text, near, "vllm:x{" + near + "} 5", 'vllm:x{a="' + text + '"} 5'):
        assert parse_sample(line) == _any_sample(line)


def test_a_hostile_line_takes_no_time():
    assert parse_sample("vllm:x{" + 'a="\\' * 10_000) is None
    assert parse_sample("vllm:x{" + "," * 60_000 + "} 5") is None
    assert parse_sample("vllm:x" + " " * 60_000 + "}") is None


@pytest.mark.parametrize("number", ["-1e308", "1e18"])
def test_a_number_beyond_all_measures_is_none(number):
    assert math.isnan(parse_sample(f"vllm:num_requests_running {number}").value)


@pytest.mark.parametrize("time", ["-1", "-1777636815000", "1e300", "9" * 20])
def test_a_time_before_1970_or_after_all_time_is_none(time):
    assert parse_sample(f"vllm:x 5 {time}").time_s is None
