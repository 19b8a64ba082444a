"""CONTRIBUTING's lists of what to touch are complete: a forgotten place fails here."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import numpy as np
from checkout import CHECKOUT, need

from adaspec.cost.load import cost_document, cost_from_document
from adaspec.cost.model import CostModel, StepShape
from adaspec.policy.planner.state import new_rows
from adaspec.predict import features, tables
from adaspec.predict.features import EVIDENCE_FEATURES, SPLICE_FEATURES, fill_evidence, fill_splice
from adaspec.vllm.compatibility import KNOWN
from adaspec.vllm.metrics import METRICS

UNSET = np.float32(-12345.0)


def page(name: str) -> str:
    need("docs")
    return (CHECKOUT / "docs" / name).read_text(encoding="utf-8")


def some_tables() -> tables.Tables:
    few = np.full(1, 0.5, np.float32)
    return tables.packed(np.array([7], np.uint64), few, few, few, (0.5, 0.5, 1.0, 1.0), 1)


def test_every_feature_is_filled_in() -> None:
    rows = new_rows(2)
    rows.prompt_tokens[:], rows.position[:], rows.slots[:] = 20, 3, (0, 1)
    rows.length[:], rows.start[:], rows.available[:] = (4, 0), 5, 9
    rows.tail[:], rows.candidate[:] = 3, 4
    keys = np.zeros(tables.LEVELS, np.uint64)
    before = np.full((2, features.FEATURES), UNSET)
    features.fill_features(rows, some_tables(), keys, before)
    assert before.shape[1] == len(features.PRE_DRAFT_FEATURES)
    assert not (before == UNSET).any()
    least = np.zeros(2, np.float32)
    evidence, splice = np.full(len(EVIDENCE_FEATURES), UNSET), np.full(len(SPLICE_FEATURES), UNSET)
    fill_evidence(1, 0.5, np.zeros(3, np.float32), 1, 2.0, 0.5, 1.0, least, 3, 1, 1, evidence)
    assert not (evidence == UNSET).any()
    facts = (3, 1, 1, 9, 2, 0.5, 4.0, 3)
    fill_splice(*facts, some_tables(), 3, 4, keys, splice)
    assert not (splice == UNSET).any()


def test_every_cost_term_is_charged_read_back_and_documented() -> None:
    terms = [item.name for item in fields(CostModel) if item.name.endswith("_s")]
    cost = CostModel(
        "any",
        (8, 9, 20),
        (0.1, 0.2, 0.3),
        8,
        **{term: 1e-3 * (at + 1) for at, term in enumerate(terms)},
    )
    assert cost_from_document(cost_document(cost), "here") == cost
    shape = StepShape(4, 900, 6, 2, True, 0, 5, 5)

    for term in terms:
        dearer = replace(cost, **{term: 2 * getattr(cost, term)})
        assert dearer.step_s(shape) > cost.step_s(shape), term
    for term in (*terms, "tokens", "seconds", "largest_graph"):
        assert f"`{term}`" in page("costs.md") or f'"{term}"' in page("costs.md"), term


def test_every_metric_is_counted_and_documented() -> None:
    sources = [
        path.read_text(encoding="utf-8") for path in (CHECKOUT / "adaspec/vllm").glob("*.py")
    ]
    code = "\n".join(sources)
    for metric in METRICS:
        # Once in the table, and at least once where something is counted.
        assert len(re.findall(rf'"{metric.name}["/]', code)) >= 2, metric.name
        assert f"`adaspec:{metric.name}" in page("serve.md"), metric.name


def test_every_supported_vllm_is_documented_and_resolved() -> None:
    script = CHECKOUT / "tests" / "packaging" / "resolve_beside_vllm.py"
    resolved = re.findall(r'"(\d+\.\d+)\.\d+"', script.read_text(encoding="utf-8"))
    for version in KNOWN:
        assert version in resolved
        assert f"vLLM {version}" in page("serve.md")
    project = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"vllm>={KNOWN[0]},<' in project
