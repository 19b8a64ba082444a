"""Tables of a learned policy, for a report and for its card: calibration and ablations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from adaspec.evaluate.render.report import number
from adaspec.evaluate.render.table import NULL, Table, simple_table
from adaspec.evaluate.render.wording import decimal, signed_percent

SOURCES = {"ngram": "n-gram", "neural": "neural"}


def calibration(document: Mapping[str, Any], title: str = "Calibration") -> Iterator[Table]:
    """How far a learned policy's probabilities can be believed, before and after drafting."""
    yield simple_table(
        title,
        ["source", "", "states", "came true", *_heads("without tables")],
        [
            [SOURCES[source], f"S({each['survival']})", *_judged(each, "without_tables")]
            for source, judged in document["sources"].items()
            for each in judged
        ],
        2,
        "S(j) is the probability that at least j drafted tokens are accepted, as predicted before "
        "drafting in the states that the policy visits. ECE is the expected calibration error over "
        "bins of equally many states; AUC and log-loss stand beside those of the same model "
        "without token tables.",
    )
    if document.get("drafted"):
        yield simple_table(
            f"{title}, token by token",
            ["drafted token", "states", "right", *_heads("before seen")],
            [[str(each["token"]), *_judged(each, "before")] for each in document["drafted"]],
            0,
            "Where all drafted before it were right: how well the policy knows that a drafted "
            "token is right once it has seen it, with its confidences, and how well before.",
        )


def ablations(document: Mapping[str, Any], title: str = "Ablations") -> Table:
    """What each part of a learned policy is worth."""
    loads = [str(load) for load in document["concurrency"]]
    return simple_table(
        title,
        ["", "what is missing", *(f"at {load}" for load in loads)],
        [
            [row["name"], row["without"], *(signed_percent(row["lift"][load]) for load in loads)]
            for row in document["rows"]
        ],
        2,
        "Lift over `static:best`, all workloads mixed, of the policy, of policies trained and run "
        "without one part of it each, and of the best settings in hindsight of two simpler "
        f"families. No intervals: differences below a percent say little. `{NULL}`: nothing was "
        "there to take away, or, cross-fitted, one policy would have had to decide alone.",
    )


def _heads(beside: str) -> list[str]:
    return ["ECE", "AUC", beside, "log-loss", beside]


def _judged(entry: Mapping[str, Any], beside: str) -> list[str]:
    other = entry[beside]
    figures = (entry["came"], entry["ece"], entry["auc"], other["auc"])
    values = (*figures, entry["log_loss"], other["log_loss"])
    return [f"{entry['states']:,}", *(decimal(number(value), 3) for value in values)]
