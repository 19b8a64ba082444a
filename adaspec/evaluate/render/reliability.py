"""How far a learned policy's probabilities can be believed: tables and the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adaspec.evaluate.render.results import Report, number
from adaspec.evaluate.render.wording import NULL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"ngram": "n-gram", "neural": "neural"}
EXPLAINED = (
    "S(j) is the probability that at least j drafted tokens are accepted, as said before drafting "
    "in the states that the policy visits. ECE is the expected calibration error over bins of "
    "equally many states; AUC and log-loss stand beside those of the same model without token "
    "tables."
)
HEAD = (
    "source",
    "",
    "states",
    "came true",
    "ECE",
    "AUC",
    "without tables",
    "log-loss",
    "without tables",
)
HEARD = (
    "Token by token, where all drafted before it were right: how well the policy knows that a "
    "drafted token is right once it has seen it, with its confidences, and how well before."
)
HEARD_HEAD = (
    "drafted token",
    "states",
    "right",
    "ECE",
    "AUC",
    "before seen",
    "log-loss",
    "before seen",
)
_SHADES = (1.0, 0.72, 0.5, 0.32)


def calibration_rows(calibration: Mapping[str, Any]) -> list[list[str]]:
    """A line per source and depth, under `HEAD`."""
    return [
        [
            NAMES.get(source, source),
            f"S({each['survival']})",
            f"{each['states']:,}",
            _written(each["came"]),
            _written(each["ece"]),
            _written(each["auc"]),
            _written(each["without_tables"]["auc"]),
            _written(each["log_loss"]),
            _written(each["without_tables"]["log_loss"]),
        ]
        for source, judged in calibration["sources"].items()
        for each in judged
    ]


def heard_rows(calibration: Mapping[str, Any]) -> list[list[str]]:
    """A line per drafted token, under `HEARD_HEAD`; none where no policy listens."""
    return [
        [
            str(each["token"]),
            f"{each['states']:,}",
            _written(each["came"]),
            _written(each["ece"]),
            _written(each["auc"]),
            _written(each["before"]["auc"]),
            _written(each["log_loss"]),
            _written(each["before"]["log_loss"]),
        ]
        for each in calibration.get("drafted", ())
    ]


def calibration_figure(report: Report) -> Figure | None:
    """What came over what was said, a panel per source; None where nothing was judged."""
    sources = (report.get("calibration") or {}).get("sources") or {}
    if not sources:
        return None
    from adaspec.evaluate.render.style import WIDTH_IN, canvas, named_axes, place, titled

    loads = ", ".join(str(each) for each in report["calibration"]["concurrency"])
    figure, top = canvas(
        4.0,
        "Calibration: how often what was expected came true",
        f"S(j): at least j drafted tokens are accepted; states visited at concurrency {loads}; "
        f"{report['calibration']['bins']} bins of equally many states; on the line is right",
    )
    top += 0.22
    wide = (WIDTH_IN - 0.62 - 0.2 - 0.55) / 2
    for column, (source, judged) in enumerate(sources.items()):
        axes = place(figure, 0.62 + column * (wide + 0.55), top, wide, 4.0 - top - 0.5)
        _panel(axes, source, judged)
        titled(axes, NAMES.get(source, source))
        named_axes(axes, "said", "" if column else "share that came true")
    return figure


def _panel(axes: Axes, source: str, judged: Sequence[Mapping[str, Any]]) -> None:
    from adaspec.evaluate.render.style import FAINT, INK, NEURAL, NGRAM, SMALL

    colour = NGRAM if source == "ngram" else NEURAL
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, zorder=1)
    for each, shade in zip(judged, _SHADES, strict=False):
        axes.plot(
            [said for said, _, _ in each["curve"]],
            [came for _, came, _ in each["curve"]],
            color=colour,
            alpha=shade,
            marker="o",
            markersize=3,
            linewidth=1.2,
            label=f"S({each['survival']})  ECE {_written(each['ece'])}",
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.legend(loc="upper left", fontsize=SMALL, edgecolor="none", handlelength=1.4)


def _written(value: object) -> str:
    found = number(value)
    return NULL if found is None else f"{found:.3f}"
