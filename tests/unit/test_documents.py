"""JSON is read strictly, and files are read without waiting for anybody."""

import math
import os
from types import SimpleNamespace

import pytest
from refusals import refusal

from adaspec.documents import (
    check_keys,
    check_values,
    is_json,
    number,
    one_of,
    or_null,
    parse_json,
    read_file,
    some_of,
    upgraded,
    whole,
)
from adaspec.errors import AdaspecError, TraceError

MISTAKES = {
    "not JSON": ("{", "Expecting property name"),
    "empty": ("", "Expecting value"),
    "a key twice": ('{"a": 1, "a": 1}', "'a' stands there twice"),
    "NaN": ("[NaN]", "NaN is no finite number"),
    "infinity": ("[-Infinity]", "-Infinity is no finite number"),
    "a float too large": ("[1e999]", "1e999 is no finite number"),
    "5,000 digits": ("-" + "9" * 5_000, "is no finite number"),
    "surrogates not allowed": ('{"a": "\\ud800"}', "surrogates not allowed"),
    "as a key": ('{"\\ud800": 1}', "surrogates not allowed"),
    "no UTF-8": (b'"\xed\xa0\x80"', "can't decode byte"),
    "unclosed": ("[" * 100_000, "maximum recursion depth"),
}


@pytest.mark.parametrize(("text", "why"), MISTAKES.values(), ids=MISTAKES)
def test_what_is_no_strict_json_is_refused_in_one_line(text, why):
    said = refusal(TraceError, parse_json, text, "file line 3", TraceError, "mend it")
    assert said.startswith("file line 3: broken JSON (")
    assert said.endswith("): mend it")
    assert why in said


def test_what_is_strict_json_is_read():
    assert parse_json(b'\xef\xbb\xbf{"a": [1]}', "file", AdaspecError) == {"a": [1]}
    assert parse_json('"\\ud83d\\ude00"', "file", AdaspecError) == "\N{GRINNING FACE}"
    assert parse_json("[18446744073709551615, 1e-999, 1E+100]", "file", AdaspecError) == [
        2**64 - 1,
        0.0,
        1e100,
    ]


@pytest.mark.parametrize("value", [float("nan"), {1: 2}, "\ud800", {"a": object()}])
def test_what_json_cannot_hold_is_told_apart(value):
    assert not is_json(value)
    assert is_json({"käse": [None, True, -(2**63), 0.5, [], {}]})


def test_a_pipe_that_nobody_writes_to_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path):
        with pytest.raises(TraceError, match=f"{place}: is not a file: copy it"):
            read_file(place, TraceError, "copy it")


def test_a_file_larger_than_it_may_be_is_refused_unread(tmp_path):
    file = tmp_path / "file"
    file.touch()
    os.truncate(file, 1 << 40)
    with pytest.raises(TraceError, match="1099511627776 bytes are more than the 10"):
        read_file(file, TraceError, "copy it", max_bytes=10)


RULES = {
    "kind": one_of(("dense", "logged")),
    "cap": or_null(whole(1, 8)),
    "drafters": some_of(("ngram", "neural")),
    "share": number(0, 1, "a share from 0 to 1"),
}
SOUND = {"kind": "dense", "cap": None, "drafters": ["neural"], "share": 0.5}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": ["dense"]}, "kind is ['dense'], not one of dense, logged"),
        ({"cap": 9}, "cap is 9, not a whole number from 1 to 8 or null"),
        ({"cap": True}, "cap is True, not a whole number"),
        ({"drafters": ["neural", "ngram"]}, "not a list of ngram, neural, in this order"),
        ({"drafters": list(range(100))}, "drafters is a list of 100, not a list of"),
        ({"share": math.nan}, "share is nan, not a share from 0 to 1"),
        ({"share": "x" * 1000}, "..., not a share"),
    ],
)
def test_a_field_that_breaks_its_rule_is_named_with_what_it_should_be(change, said):
    rules = RULES, "file", TraceError
    check_values(SimpleNamespace(**SOUND), *rules)
    found = refusal(TraceError, check_values, SimpleNamespace(**SOUND | change), *rules)
    assert said in found
    assert len(found) < 150


def test_a_records_keys_are_all_known_and_all_there():
    check_keys(SOUND, RULES, "file", TraceError)
    with pytest.raises(TraceError, match=r"file: unknown key 'knid'; did you mean 'kind'\?"):
        check_keys(SOUND | {"knid": 1}, RULES, "file", TraceError)
    with pytest.raises(TraceError, match="file: key 'cap' is missing"):
        check_keys({"kind": "dense"}, RULES, "file", TraceError)
    check_keys({"kind": "dense"}, RULES, "file", TraceError, optional=RULES)
    with pytest.raises(TraceError, match=r"file: is \[1\], not an object"):
        check_keys([1], RULES, "file", TraceError)


def test_an_older_record_is_one_of_the_newest_schema_and_a_newer_one_refused():
    assert upgraded({"schema": 1, "a": 7}, "a trace", 2, "file", TraceError) == {
        "schema": 2,
        "a": 7,
    }
    with pytest.raises(TraceError, match="file: not a trace: it has no 'schema'"):
        upgraded([], "a trace", 2, "file", TraceError)
    with pytest.raises(TraceError, match=r"schema 3 is newer than the 2 .*: update adaspec"):
        upgraded({"schema": 3}, "a trace", 2, "file", TraceError)
