"""CONTRIBUTING's lists of what to touch are complete: a forgotten place fails here."""

import re

from checkout import CHECKOUT, need
from msgspec import structs

from adaspec.cost.load import cost_document, cost_from_document
from adaspec.cost.model import TERMS, CostModel, StepShape
from adaspec.vllm.compatibility import KNOWN
from adaspec.vllm.metrics import METRICS


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
