"""How a number, an interval and a name are written, the same in tables, report.md and plots."""

from __future__ import annotations

from collections.abc import Sequence

from adaspec.evaluate.render.report import Interval
from adaspec.evaluate.render.table import NULL


def plain(name: object) -> str:
    """`name` on one line, with what a terminal would obey instead of showing replaced."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(str(name).split()))


def decimal(value: float | None, places: int = 2) -> str:
    """A plain number."""
    return NULL if value is None else f"{value:z.{places}f}"


def times(value: float | None) -> str:
    """A speedup: `2.86x`."""
    return NULL if value is None else f"{value:.2f}x"


def signed_percent(value: float | None) -> str:
    """A lift: `+9.5%`."""
    return NULL if value is None else f"{100 * value:+z.1f}%"


def percent(value: float | None, places: int = 0) -> str:
    """A share: `41%`."""
    return NULL if value is None else f"{100 * value:z.{places}f}%"


def signed_range(value: Interval | None) -> str:
    """A lift's interval: `[+8.1, +10.9]`, in percent; empty where there is none."""
    return "" if value is None else f"[{100 * value[0]:+z.1f}, {100 * value[1]:+z.1f}]"


def plain_range(value: Interval | None) -> str:
    """A speedup's interval: `[2.81, 2.90]`; empty where there is none."""
    return "" if value is None else f"[{value[0]:.2f}, {value[1]:.2f}]"


def milliseconds(value_s: float | None) -> str:
    """Seconds, written in milliseconds."""
    return NULL if value_s is None else f"{1e3 * value_s:.2f}"


def short(name: str, width: int) -> str:
    """`name` cut in its middle to `width` characters."""
    text = plain(name)
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[-(width - 1 - head) :]}"


def short_names(names: Sequence[str], width: int) -> dict[str, str]:
    """Every name cut to `width`, numbered where two became the same."""
    cut = {name: short(name, width) for name in names}
    texts = list(cut.values())
    for index, name in enumerate(names, start=1):
        if texts.count(cut[name]) > 1:
            cut[name] = f"{short(name, width - 4)} #{index}"
    return cut
