"""Earlier answers on disk: what is read is what was written, and what is broken does no harm."""

import numpy as np
import pytest

from adaspec.draft.answers import BYTES_PER_TOKEN, AnswerIndex
from adaspec.vllm import kept_answers
from adaspec.vllm.kept_answers import KeptAnswers, contents_of, read_answers, write_answers

ROOM = 2_000 * BYTES_PER_TOKEN
SIZE = 1_000


def filled(answers=40, seed=0, room=ROOM):
    """An index of two named owners and one without a name."""
    rng, index = np.random.default_rng(seed), AnswerIndex(room)
    owners = [index.owner("one"), index.owner("two"), index.owner(object())]
    for at in range(answers):
        index.add(rng.integers(0, 9, rng.integers(3, 60)), owners[at % 3])
    return index


def contents(index):
    return contents_of(*index.in_order(), index.keys, "v")


def tokens_of(index, key):
    """What is stored of an owner, the oldest first."""
    tokens, owners = index.in_order()
    return tokens[owners == index.owner(key)].tolist()


@pytest.mark.parametrize("answers", [40, 400])
def test_what_is_read_is_what_was_written_by_owner(tmp_path, answers):
    """The ring holds 40 answers and goes round with 400."""
    index, path = filled(answers), tmp_path / "new" / "answers.npz"
    write_answers(path, contents(index))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["answers.npz"]
    again = AnswerIndex(4 * ROOM)
    assert 0 < read_answers(path, again, "v", SIZE) < index.tokens
    for key in ("one", "two"):
        assert tokens_of(again, key) == tokens_of(index, key)
    assert again.keys.keys() == {"one", "two"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tokens": np.array([1, 2, SIZE], np.int32)}, "not from 0"),
        ({"tokens": np.array([-7, 2, 3], np.int32)}, "not from 0"),
        ({"tokens": np.array([1.0, 2.0, 3.0])}, "other types"),
        ({"owners": np.array([0, 0], np.int32)}, "do not fit"),
        ({"owners": np.array([0, 0, 9], np.int32)}, "of nobody"),
        ({"keys": np.array([{"a": 1}], object)}, "answers.npz are left out"),
        ({"vocabulary": np.array("w")}, "another vocabulary"),
    ],
)
def test_a_file_that_is_wrong_is_left_out(tmp_path, caplog, changes, why):
    index, path = AnswerIndex(ROOM), tmp_path / "answers.npz"
    contents = {
        "tokens": np.array([1, 2, 3], np.int32),
        "owners": np.zeros(3, np.int32),
        "keys": np.array(["one"]),
        "vocabulary": np.array("v"),
    }
    np.savez(path, **contents)
    assert read_answers(path, index, "v", SIZE) == 3
    before = index.tokens
    np.savez(path, **{**contents, **changes})
    with caplog.at_level("WARNING", "vllm.adaspec"):
        assert read_answers(path, index, "v", SIZE) == 0
    assert index.tokens == before
    assert why in caplog.text


def test_a_broken_file_is_left_out_and_a_missing_one_is_none(tmp_path, caplog):
    index, path = filled(), tmp_path / "answers.npz"
    assert read_answers(path, index, "v", SIZE) == 0
    assert not caplog.text
    (tmp_path / "answers.npz.abc").write_text("what a killed server left")
    write_answers(path, contents(index))
    assert [each.name for each in tmp_path.iterdir()] == ["answers.npz"]
    whole = path.read_bytes()
    for at in range(200):
        flipped = bytearray(whole)
        flipped[-1 - 7 * at % 700] ^= 1 << at % 8
        path.write_bytes(flipped)
        read_answers(path, AnswerIndex(ROOM), "v", SIZE)
    for broken in (whole[: len(whole) // 2], whole[:10], b"", b"nothing of the kind"):
        path.write_bytes(broken)
        caplog.clear()
        assert read_answers(path, AnswerIndex(ROOM), "v", SIZE) == 0
        assert "left out" in caplog.text
    write_answers(path / "answers.npz", contents(index))
    assert "not written" in caplog.text


def test_answers_are_written_now_and_then_and_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_answers, "PERIOD_S", 0.0)
    index, path = filled(10), tmp_path / "answers.npz"
    keeper = KeptAnswers(path, index, "v")
    keeper.left(["a"])
    keeper._thread.join()
    first = read_answers(path, AnswerIndex(ROOM), "v", SIZE)
    monkeypatch.setattr(kept_answers, "PERIOD_S", 1e9)
    index.add(np.arange(50), index.owner("one"))
    keeper.left(["b"])
    assert read_answers(path, AnswerIndex(ROOM), "v", SIZE) == first
    keeper.close()
    assert read_answers(path, AnswerIndex(ROOM), "v", SIZE) == first + 50
