"""What heads learn of runs that a limit of tokens cut off."""

from types import SimpleNamespace

import numpy as np
import pytest

from adaspec.policy.planner.memory import LONGEST_NGRAM
from adaspec.predict.features import BEFORE
from adaspec.train.heads import Settings, _fit_source, is_text_known

REQUESTS = 40
POSITION = BEFORE.index("position")


def recording_of(length, cut_off):
    """Requests of that length, each of which was cut off or not."""
    count = len(cut_off)
    columns = SimpleNamespace(offset=np.arange(count + 1) * length, length=np.full(count, length))
    requests = [SimpleNamespace(is_cut_off=each) for each in cut_off]
    return SimpleNamespace(columns=columns, requests=requests)


def longest_copies(length, cut_off):
    """The learned length of a copy by position, where all that follows is always copied."""
    recording = recording_of(length, [cut_off] * REQUESTS)
    at = np.arange(REQUESTS * length)
    position = at % length
    at, position = at[position > 0], position[position > 0]
    x = np.zeros((len(at), len(BEFORE)), np.float32)
    x[:, POSITION] = position
    run = (length - position).astype(np.int16)
    settings = Settings(threads=1, rounds=40)
    heads, _ = _fit_source("ngram", x, run, np.ones(len(at)), recording, at, settings)
    return np.expm1(heads["ngram_more"].predict(x[: length - 1]))


def test_what_follows_is_unknown_behind_an_end_that_a_limit_made():
    recording = recording_of(10, [True, False])
    at = np.array([0, 4, 7, 9, 14, 19])
    assert is_text_known(recording, at, 3).tolist() == [True, True, True, False, True, True]
    depths = np.array([10, 7, 3, 2, 9, 9])
    assert is_text_known(recording, at, depths).tolist() == [True, False, True, False, True, True]


def test_copies_end_where_outputs_do_and_not_where_a_limit_cut_them_off():
    assert longest_copies(200, cut_off=True) == pytest.approx(LONGEST_NGRAM, rel=0.01)
    ended = longest_copies(200, cut_off=False)
    assert ended[:100] == pytest.approx(LONGEST_NGRAM, rel=0.05)
    assert ended[-1] < 10
    # Outputs shorter than the longest draft still teach.
    assert longest_copies(LONGEST_NGRAM - 8, cut_off=True)[0] > 20
