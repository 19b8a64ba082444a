"""What goes to standard output, and what to standard error."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from adaspec.cli.output import ProgressBar, print_json, remarks, results


def test_numpy_and_tuples_become_plain_json(capsys):
    print_json({"rows": (np.float64(1.5), np.int32(2), np.array([1, 2])), "ok": np.bool_(True)})
    assert json.loads(capsys.readouterr().out) == {"rows": [1.5, 2, [1, 2]], "ok": True}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -np.inf, np.float32("nan")])
def test_what_was_not_computed_is_null(capsys, value):
    print_json({"ci95": [value, 1.0], "deep": {"array": np.array([value])}})
    assert json.loads(capsys.readouterr().out) == {"ci95": [None, 1.0], "deep": {"array": [None]}}


def test_text_stays_readable(capsys):
    print_json({"workload": "größe"})
    assert "größe" in capsys.readouterr().out


def test_results_and_remarks_go_separate_ways(capsys):
    results().print("a table")
    remarks().print("a remark")
    assert capsys.readouterr() == ("a table\n", "a remark\n")


def screen(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=80)


def test_no_bar_is_drawn_where_nobody_watches():
    console = screen(terminal=False)
    with ProgressBar(console, patience_s=0.0) as bar:
        bar("replaying", 1, 2)
    assert console.file.getvalue() == ""


def test_no_bar_is_drawn_for_what_is_soon_done():
    console = screen(terminal=True)
    with ProgressBar(console, patience_s=1e9) as bar:
        bar("replaying", 1, 2)
    assert console.file.getvalue() == ""


def test_a_bar_is_drawn_once_patience_ends():
    console = screen(terminal=True)
    with ProgressBar(console, patience_s=0.0) as bar:
        bar("replaying", 1, 2)
        bar("intervals", 0, 40)
        bar("replaying", 2, 2)
    drawn = console.file.getvalue()
    assert "replaying" in drawn
    assert "intervals" in drawn


def test_a_bar_survives_what_is_raised_inside_it():
    with pytest.raises(KeyError), ProgressBar(screen(terminal=True), patience_s=0.0) as bar:
        bar("replaying", 1, 2)
        raise KeyError
