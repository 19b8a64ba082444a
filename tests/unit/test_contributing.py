"""CONTRIBUTING's lists of what to touch are complete: a forgotten place fails here."""

import json
import re

import pytest
from checkout import CHECKOUT, need
from msgspec import structs

from adaspec.cost.load import cost_document, cost_from_document
from adaspec.cost.model import TERMS, CostModel, StepShape
from adaspec.vllm.compatibility import KNOWN
from adaspec.vllm.metrics import METRICS, POLICY_LABELS, PREFIX


def page(name):
    need("docs")
    return (CHECKOUT / "docs" / name).read_text(encoding="utf-8")


def test_every_cost_term_is_charged_read_back_and_documented():
    cost = CostModel(
        "any",
        (8, 9, 20),
        (0.1, 0.2, 0.3),
        8,
        **{term: 1e-3 * (at + 1) for at, term in enumerate(TERMS)},
    )
    assert cost_from_document(cost_document(cost), "here") == cost
    shape = StepShape(4, 900, 6, 2, True, 0, 5, 5)

    for term in TERMS:
        dearer = structs.replace(cost, **{term: 2 * getattr(cost, term)})
        assert dearer.step_s(shape) > cost.step_s(shape), term
    for term in (*TERMS, "tokens", "seconds", "largest_graph"):
        assert f"`{term}`" in page("costs.md") or f'"{term}"' in page("costs.md"), term


def test_every_metric_is_counted_and_documented():
    sources = [
        path.read_text(encoding="utf-8") for path in (CHECKOUT / "adaspec/vllm").glob("*.py")
    ]
    code = "\n".join(sources)
    for metric in METRICS:
        # Once in the table, and at least once where something is counted.
        assert len(re.findall(rf'"{metric.name}["/]', code)) >= 2, metric.name
        assert f"`adaspec:{metric.name}" in page("serve.md"), metric.name


def test_every_supported_vllm_is_documented_and_resolved():
    script = CHECKOUT / "tests" / "packaging" / "beside_vllm.py"
    resolved = re.findall(r'"(\d+\.\d+)\.\d+"', script.read_text(encoding="utf-8"))
    for version in KNOWN:
        assert version in resolved
        assert f"vLLM {version}" in page("serve.md")
    project = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"vllm>={KNOWN[0]},<' in project


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
