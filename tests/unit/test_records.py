import math
import os
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct
from refusals import refusal

from adaspec.errors import AdaspecError, TraceError
from adaspec.records import Text, convert, parse_json, read_file, upgraded

Share = Annotated[float, Meta(ge=0, le=1, description="a share from 0 to 1")]


class Sample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["dense", "sparse"]
    cap: Annotated[int, Meta(ge=1, le=8)] | None
    name: Text = "x"
    share: Share = 0.5
    drafters: tuple[Literal["ngram", "neural"], ...] = ()
    loads: dict[Annotated[int, Meta(ge=1)], Share] = {}

    def __post_init__(self):
        if self.share == self.cap:
            raise TraceError("share and cap are one")


SOUND = {"kind": "dense", "cap": None}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"knid": 1, "cpa": 2}, "unknown key 'knid'; did you mean 'kind'?; unknown key 'cpa'; did"),
        ({5: 1}, "unknown key 5"),
        ({"kind": "desne"}, "kind is 'desne'; did you mean 'dense'? (known: dense, sparse)"),
        ({"kind": ["dense"]}, "kind is ['dense'] (known: dense, sparse)"),
        ({"cap": 9}, "cap is 9: expected int <= 8"),
        ({"cap": True}, "cap is True: expected int | null"),
        ({"drafters": ["neural", "ngrma"]}, "drafters[1] is 'ngrma'; did you mean 'ngram'?"),
        ({"drafters": list(range(100))}, "drafters[0] is 0 (known: ngram, neural)"),
        ({"share": math.nan}, "share is nan: expected a share from 0 to 1"),
        ({"share": "x" * 1000}, "...: expected a share"),
        ({"loads": {"one": 1}}, "loads is an object of 1 keys: expected a share from 0 to 1"),
        ({"name": " "}, "name is ' ': expected a text of one line"),
        ({"name": "a\nb"}, r"name is 'a\nb': expected a text of one line"),
        ({"share": 1, "cap": 1}, "share and cap are one"),
    ],
)
def test_what_is_no_such_record_is_named_with_what_it_should_be(change, said):
    found = refusal(TraceError, convert, SOUND | change, Sample, "file", TraceError)
    assert found.startswith("file: ")
    assert said in found
    assert len(found) < 170


def test_a_record_says_what_it_is_and_lacks_nothing():
    found = convert(SOUND | {"drafters": ["ngram"], "loads": {"8": 1}}, Sample, "file", TraceError)
    assert found == Sample(kind="dense", cap=None, drafters=("ngram",), loads={8: 1.0})
    with pytest.raises(TraceError, match="file: key 'cap' is missing"):
        convert({"kind": "dense"}, Sample, "file", TraceError)
    with pytest.raises(TraceError, match=r"file: is \[1\], not an object"):
        convert([1], Sample, "file", TraceError)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "",
        "[NaN]",
        "[1e999]",
        '{"a": "\\ud800"}',
        b'"\xed\xa0\x80"',
        "[" * 10**5,
    ],
)
def test_what_is_no_json_is_refused_in_one_line(text):
    said = refusal(TraceError, parse_json, text, "file line 3", TraceError, "mend it")
    assert said.startswith("file line 3: broken JSON (")
    assert said.endswith("): mend it")


def test_json_is_read_behind_a_mark_of_byte_order():
    assert parse_json(b'\xef\xbb\xbf{"a": [1]}', "file", AdaspecError) == {"a": [1]}


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


def test_an_older_record_is_one_of_the_newest_schema_and_a_newer_one_refused():
    assert upgraded({"schema": 1, "a": 7}, "a trace", 2, "file", TraceError) == {
        "schema": 2,
        "a": 7,
    }
    with pytest.raises(TraceError, match="file: not a trace: it has no 'schema'"):
        upgraded([], "a trace", 2, "file", TraceError)
    with pytest.raises(TraceError, match=r"schema 3 is newer than the 2 .*: update adaspec"):
        upgraded({"schema": 3}, "a trace", 2, "file", TraceError)
