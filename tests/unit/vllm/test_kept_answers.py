"""Earlier answers on disk: what is read is what was written, and what is broken does no harm."""

import json

import numpy as np

from adaspec.draft.answers import BYTES_PER_TOKEN, LEAST_TOKENS, AnswerIndex
from adaspec.vllm.kept_answers import KeptIndex

ROOM = 2_000 * BYTES_PER_TOKEN
SIZE = 1_000


def opened(path, room=ROOM):
    return KeptIndex(room, path, "v", SIZE)


def add_answers(index, answers):
    """Answers of two named owners and one without a name."""
    rng = np.random.default_rng(0)
    owners = [index.owner("one"), index.owner("two"), index.owner(object())]
    for at in range(answers):
        index.add(rng.integers(0, 9, rng.integers(3, 60)), owners[at % 3])


def said(index):
    """The answers that an index holds and whose they are, the oldest of the ring first."""
    ring, found = index._ring, []
    for part in np.split(np.arange(index.capacity), np.flatnonzero(ring.tokens < 0)):
        places = part[(ring.owners[part] > 0) & (ring.tokens[part] >= 0)]
        if len(places):
            key = index.key_of(int(ring.owners[places[0]]))
            found.append((key, ring.tokens[places].tolist()))
    return found


def test_what_is_read_is_what_was_written_by_owner(tmp_path):
    path = tmp_path / "new" / "answers.jsonl"
    index = opened(path)
    add_answers(index, 40)
    index.close()
    assert path.stat().st_mode & 0o777 == 0o600
    again = opened(path)
    assert said(again) == [(key, tokens) for key, tokens in said(index) if isinstance(key, str)]
    assert len(said(again)) > 25
    again.add([7] * 9, again.owner("two"))
    again.close()
    third = opened(path)
    assert said(third) == [*said(again)[:-1], ("two", [7] * 9)]


def test_files_stay_small_and_hold_all_that_is_remembered(tmp_path):
    path = tmp_path / "answers.jsonl"
    index = opened(path, LEAST_TOKENS * BYTES_PER_TOKEN)
    for at in range(200):
        index.add([at] * 50, index.owner("one"))
    index.close()
    files = sorted(each.name for each in tmp_path.iterdir())
    assert files == ["answers.jsonl", "before-answers.jsonl"]
    assert sum(each.read_text().count("owner") for each in tmp_path.iterdir()) < 50
    again = opened(path, LEAST_TOKENS * BYTES_PER_TOKEN)
    assert sorted(said(again)) == sorted(said(index))


def test_lines_that_are_wrong_are_left_out_and_spoil_no_other(tmp_path, caplog):
    path = tmp_path / "answers.jsonl"
    good = {"vocabulary": "v", "owner": "one", "tokens": [1, 2, 3]}
    wrong = [
        {"tokens": [1, 2, SIZE]},
        {"tokens": [1, 2, 1 << 70]},
        {"tokens": [-1, 2, 3]},
        {"tokens": [1.0, 2.0, 3.0]},
        {"tokens": [True, False, True]},
        {"tokens": [[1, 2, 3]]},
        {"tokens": [[1], [2, 3]]},
        {"tokens": []},
        {"tokens": None},
        {"owner": 7},
        {"owner": None},
        {"vocabulary": "w"},
    ]
    lines = [json.dumps(good | each).encode() for each in wrong]
    lines += [b"[1, 2]", b"7", b"nothing", b"\xff\xfe", b"[" * 100_000]
    path.write_bytes(b"\n".join([*lines, b'{"vocabulary": "v", "own']))
    with caplog.at_level("WARNING", "vllm.adaspec"):
        index = opened(path)
    assert index.tokens == 0
    assert f"{len(lines) + 1} lines of {path} are left out" in caplog.text
    index.add([4, 5, 6], index.owner("one"))
    index.close()
    assert said(opened(path)) == [("one", [4, 5, 6])]


def test_a_disk_that_takes_nothing_is_complained_of_once(tmp_path, caplog):
    (tmp_path / "file").write_text("no folder")
    index = opened(tmp_path / "file" / "answers.jsonl")
    add_answers(index, 9)
    index.close()
    assert caplog.text.count("answers are not written") == 1
    other = AnswerIndex(ROOM)
    add_answers(other, 9)
    assert index.tokens == other.tokens
