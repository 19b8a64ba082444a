"""The public recordings beside the checkout, where they are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaspec.evaluate.selection import Selection, Wanted, select
from adaspec.trace.importers.formats import import_trace

SHARED = Path(__file__).resolve().parents[4] / "shared"


def shared_trace(folder: Path) -> Path:
    """The four public files as a trace, written below `folder`."""
    recordings = SHARED / "traces" / "specdecode-bench"
    if not recordings.is_dir():
        pytest.skip(f"needs the public recordings in {recordings}")
    trace = folder / "trace"
    import_trace("specdecode-bench", [recordings], trace)
    return trace


def selected(folder: Path, *, filtered: bool) -> Selection:
    """The shared requests, as the protocol or as the closed loop takes them."""
    return select([shared_trace(folder)], Wanted(filtered=filtered))
