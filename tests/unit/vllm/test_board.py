"""The Grafana dashboard shows every metric that there is, by labels that it has, and no other."""

import json
import re

import pytest
from checkout import CHECKOUT, need

from adaspec.vllm.metrics import METRICS, POLICY_LABELS, PREFIX

SERIES = {f"{PREFIX}policy_info": POLICY_LABELS}
"""Every series that /metrics shows, with its labels."""
for metric in METRICS:
    SERIES |= {PREFIX + sample: tuple(labels) for sample, labels in metric.samples.values()}
    if metric.bounds:
        SERIES[f"{PREFIX}{metric.name}_count"] = ()


@pytest.fixture(scope="module")
def board():
    need("docs")
    return json.loads((CHECKOUT / "docs" / "grafana" / "adaspec.json").read_text(encoding="utf-8"))


def expressions(board):
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def names_in(text):
    return set(re.findall(rf"{PREFIX}[a-z_]+", text))


def test_every_metric_is_shown_and_no_other(board):
    assert set().union(*map(names_in, expressions(board))) <= set(SERIES)
    shown = " ".join(expressions(board))
    for metric in METRICS:
        assert re.search(rf"{PREFIX}{metric.name}(_total|_sum|_bucket)?{{", shown), metric.name
    assert f"{PREFIX}policy_info" in shown


def test_series_are_told_apart_by_labels_that_they_have(board):
    for panel in board["panels"]:
        for target in panel["targets"]:
            labels = set().union(*(SERIES[name] for name in names_in(target["expr"])))
            for grouped in re.findall(r"(?:by|ignoring) \(([^)]*)\)", target["expr"]):
                assert set(grouped.split(", ")) <= labels, target["expr"]
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels
