"""What goes to standard output, and what to standard error."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from adaspec.cli.output import ProgressBar, print_json, remarks, results


def test_json_is_plain_readable_and_null_where_nothing_was_computed(capsys):
    nan = np.float32("nan")
    print_json({"rows": (np.float64(1.5), np.int32(2), np.array([1, 2])), "ok": np.bool_(True)})
    print_json({"ci95": [nan, np.inf, -np.inf], "deep": {"größe": np.array([nan])}})
    out = capsys.readouterr().out
    assert "größe" in out
    one, other = map(json.loads, out.replace("}\n{", "}\0{").split("\0"))
    assert one == {"rows": [1.5, 2, [1, 2]], "ok": True}
    assert other == {"ci95": [None] * 3, "deep": {"größe": [None]}}


def test_results_and_remarks_go_separate_ways(capsys):
    results().print("a table")
    remarks().print("a remark")
    assert capsys.readouterr() == ("a table\n", "a remark\n")


def screen(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=80)


def test_no_bar_is_drawn_where_nobody_watches_or_for_what_is_soon_done():
    for terminal, patience_s in ((False, 0.0), (True, 1e9)):
        console = screen(terminal)
        with ProgressBar(console, patience_s=patience_s) as bar:
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
