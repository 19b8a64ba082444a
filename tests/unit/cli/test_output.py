"""What goes to standard output, and what to standard error."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from adaspec.cli.output import ProgressBar, print_json


def test_json_is_plain_readable_and_null_where_nothing_was_computed(capsys):
    nan = np.float32("nan")
    print_json({"rows": (np.float64(1.5), np.int32(2), np.array([1, 2])), "ok": np.bool_(True)})
    print_json({"ci95": [nan, np.inf, -np.inf], "deep": {"größe": np.array([nan])}})
    out = capsys.readouterr().out
    assert "größe" in out
    one, other = map(json.loads, out.replace("}\n{", "}\0{").split("\0"))
    assert one == {"rows": [1.5, 2, [1, 2]], "ok": True}
    assert other == {"ci95": [None] * 3, "deep": {"größe": [None]}}


def test_a_bar_is_drawn_where_somebody_watches():
    for terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
        with pytest.raises(KeyError), ProgressBar(console) as bar:
            bar("replaying", 1, 2)
            bar("intervals", 0, 40)
            raise KeyError
        for word in ("replaying", "intervals"):
            assert (word in console.file.getvalue()) is terminal
