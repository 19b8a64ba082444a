"""`eval/evidence.py` knows how every committed report is made."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPT = CHECKOUT / "eval" / "evidence.py"
REPORTS = CHECKOUT / "eval" / "reports"


@pytest.fixture(scope="module")
def evidence() -> SimpleNamespace:
    if not SCRIPT.exists():
        pytest.skip("eval/ is not here: a source distribution leaves it out")
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def test_every_report_has_a_command_that_writes_it_or_a_reason(evidence: SimpleNamespace) -> None:
    folders = {path.name for path in REPORTS.iterdir() if path.is_dir()}
    commands = evidence.reports()
    assert folders == {name.partition("/")[0] for name in commands} | set(evidence.BY_HAND)
    for name, command in commands.items():
        words = shlex.split(command)
        if name in evidence.COPIED:
            copied = evidence.COPIED[name]
            assert set(copied) == {path.name for path in (REPORTS / name).iterdir()}
        elif name not in evidence.PRINTED:
            assert words[words.index("-o") + 1] == f"eval/reports/{name}"


def test_what_commands_read_is_committed_or_made_before(evidence: SimpleNamespace) -> None:
    for name, command in evidence.reports().items():
        words = shlex.split(command)
        if words[0] == "make":
            continue
        out = f"eval/reports/{name}"
        flags = ["", *words]
        read = {
            word
            for word, flag in zip(words, flags, strict=False)
            if "/" in word and word != out and flag != "--exclude-request"
        }
        missing = {path for path in read if not (CHECKOUT / path).exists()}
        assert missing <= set(evidence.PREPARED), name
        needed = evidence.needed([command])
        assert read & set(evidence.PREPARED) <= set(needed)
        for path in needed:  # what that is made from is there too, and comes before it
            made_from = set(shlex.split(evidence.PREPARED[path])) & set(evidence.PREPARED) - {path}
            assert made_from <= set(needed[: needed.index(path)])
