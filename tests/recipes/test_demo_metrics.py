"""What the demo reads from a server's /metrics: the text that Prometheus gets, laid out."""

import importlib.util
import sys
from pathlib import Path

import pytest

from adaspec.vllm.exposition import Collector
from adaspec.vllm.metrics import Counters

exposition = pytest.importorskip("prometheus_client.exposition", reason="vLLM brings it")

DEMO = Path(__file__).resolve().parents[2] / "eval" / "serve_demo.py"
TEXT = r"""# HELP adaspec:decisions_total Decisions on one request in one step.
# TYPE adaspec:decisions_total counter
adaspec:decisions_total{reason="policy",source="none"} 40.0
adaspec:decisions_total{reason="fault",source="none"} 0.0
adaspec:decisions_total{reason="alone",source="ngram"} 10.0
adaspec:decisions_total{reason="whole",source="splice"} 50.0
adaspec:drafted_tokens_total{source="ngram"} 80.0
adaspec:drafted_tokens_total{source="neural"} 0.0
adaspec:drafted_tokens_total{source="splice"} 1.2e+03
adaspec:accepted_tokens_total{source="ngram"} 60.0
adaspec:accepted_tokens_total{source="splice"} 190.0
adaspec:drafter_forwards_total{kind="draft"} 70.0
adaspec:drafter_forwards_total{kind="keep_alive"} 30.0
adaspec:decision_seconds_bucket{le="+Inf"} 100.0
adaspec:decision_seconds_count 100.0
adaspec:decision_seconds_sum 0.05
adaspec:faults_total{stage="plan"} 0.0
adaspec:policy_info{drafter="a {\"head\"}",mode="serve",policy="C:\\p, q",why="x\ny"} 1.0
vllm:num_requests_running{engine="0"} 3.0
"""


@pytest.fixture(scope="module")
def demo():
    """The demo as a module; a source distribution leaves eval/ out."""
    if not DEMO.exists():
        pytest.skip("eval/ is not here: a source distribution leaves it out")
    sys.path.insert(0, str(DEMO.parent))
    spec = importlib.util.spec_from_file_location("serve_demo", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def figures(demo):
    return demo.Metrics.read(TEXT)


def test_samples_are_summed_by_the_labels_that_are_asked_for(figures):
    assert figures.total("decisions_total") == 100
    assert figures.total("decisions_total", source="none", reason="policy") == 40
    assert figures.total("decisions_total", source="neural") == 0
    assert figures.total("decision_seconds_count") == 100
    assert not [name for name, _ in figures if "running" in name]
    labels = {"drafter": 'a {"head"}', "policy": r"C:\p, q", "why": "x\ny"}
    assert figures.total("policy_info", **labels) == 1
    assert figures.total("policy_info", colour="") == 0


def test_the_rows_say_what_was_decided_and_what_came_of_it(demo, figures):
    rows = dict(demo.metric_rows([figures, figures - figures]))
    assert list(rows) == [
        "decisions",
        "  none: policy",
        "  ngram: alone",
        "  splice: whole",
        "accepted of drafted, ngram",
        "accepted of drafted, splice",
        "emitted per decision",
        "drafter forwards, draft",
        "drafter forwards, keep-alive",
        "deciding, ms a step",
    ]
    assert rows["decisions"] == ["100", "0"]
    assert rows["accepted of drafted, splice"] == ["190 of 1,200", "-"]
    assert rows["emitted per decision"] == ["3.50", "-"]
    assert rows["deciding, ms a step"] == ["0.50", "-"]


def test_faults_have_a_row_where_there_were_any(demo):
    figures = demo.Metrics.read('adaspec:faults_total{stage="plan"} 2.0\n')
    assert dict(demo.metric_rows([figures]))["faults"] == ["2"]


def test_what_the_plug_in_shows_is_what_is_read(demo, tmp_path):
    counters = Counters(tmp_path, {"policy": "p", "why": 'asked "for"'})
    for figure, count in (
        ("decisions/neural/trimmed", 4),
        ("drafted_tokens/neural", 9),
        ("accepted_tokens/neural", 6),
        ("drafter_forwards/keep_alive", 5),
        ("decision_seconds/0.001", 4),
        ("clocked_steps/long", 3),
        ("clocked_step_seconds/long", 0.3),
        ("clocked_step_modelled_seconds/long", 0.25),
        ("decision_seconds_sum", 0.002),
    ):
        counters.add(figure, count)
    figures = demo.Metrics.read(exposition.generate_latest(Collector(tmp_path)).decode())
    assert figures.total("policy_info", why='asked "for"') == 1
    rows = dict(demo.metric_rows([figures]))
    assert rows["  neural: trimmed"] == ["4"]
    assert rows["accepted of drafted, neural"] == ["6 of 9"]
    assert rows["emitted per decision"] == ["2.50"]
    assert rows["drafter forwards, keep-alive"] == ["5"]
    assert rows["step time over the costs', more"] == ["1.20 of 3"]
    assert rows["deciding, ms a step"] == ["0.50"]
