"""What the demo reads from a server's /metrics: the text that Prometheus gets, laid out."""

import importlib.util
import sys
from pathlib import Path

import pytest

from adaspec.vllm.exposition import Collector
from adaspec.vllm.metrics import Counters

exposition = pytest.importorskip("prometheus_client.exposition", reason="vLLM brings it")

DEMO = Path(__file__).resolve().parents[2] / "eval" / "serve_demo.py"


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
        ("faults/plan", 2),
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
    assert rows["faults"] == ["2"]
    assert dict(demo.metric_rows([figures - figures]))["emitted per decision"] == ["-"]
