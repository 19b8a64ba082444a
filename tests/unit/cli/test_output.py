"""What goes to standard output, and what to standard error."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from adaspec.cli.output import ProgressBar, print_json


def test_json_is_readable_null_where_nothing_was_computed_and_steers_no_terminal(capsys):
    numbers = {"rows": (np.float64(1.5), np.int32(2), np.array([1, 2])), "ok": np.bool_(True)}
    unknown = {"ci95": [np.float32("nan"), np.inf, -np.inf], "größe": np.array([np.nan])}
    steering = {"name\x9b": ["\x7f", "\ud800", "\u202e", "é"]}
    print_json(numbers | unknown | steering)
    out = capsys.readouterr().out
    assert "größe" in out
    assert out.replace("\n", "").isprintable()
    computed = {"rows": [1.5, 2, [1, 2]], "ok": True}
    assert json.loads(out) == computed | {"ci95": [None] * 3, "größe": [None]} | steering


def test_a_bar_is_drawn_where_somebody_watches():
    for terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
        with pytest.raises(KeyError), ProgressBar(console) as bar:
            bar("replaying", 1, 2)
            bar("intervals", 0, 40)
            raise KeyError
        for word in ("replaying", "intervals"):
            assert (word in console.file.getvalue()) is terminal


def test_where_there_is_no_terminal_progress_is_a_line_every_half_minute():
    now_s = iter([0.0, 0.0, 1.0, 29.0, 31.0, 40.0, 95.0])
    console = Console(file=io.StringIO(), force_terminal=False)
    with ProgressBar(console, lambda: next(now_s)) as bar:
        for done in range(5):
            bar("replays", done, 40)
    assert console.file.getvalue().split("\n") == [
        "replays 2/40 after 0:31",
        "replays 4/40 after 1:35",
        "",
    ]
