import json
import re
from pathlib import Path

import numpy as np
import pytest
from checkout import CHECKOUT, need, run_python
from msgspec import structs
from refusals import refusal
from synthetic import write_synthetic
from tiny_training import TINY

import adaspec

pytestmark = pytest.mark.slow

QUICK = {"concurrency": 2, "orders": 1, "resamples": 0, "jobs": 1}


class Drafts:
    def decide(self, batch):
        batch.draft(1)
        return adaspec.Proposal(np.ones(len(batch), int), np.zeros(len(batch), int))


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "trace"
    write_synthetic(path, 0, TINY[:1], requests_per_workload=8)
    return path


def test_every_name_is_there_and_says_what_it_is_and_no_other():
    assert all(getattr(adaspec, name).__doc__ for name in adaspec.__all__)
    with pytest.raises(AttributeError, match="no attribute 'evalute'"):
        adaspec.evalute  # noqa: B018
    with pytest.raises(AttributeError, match=r"'BasePolicy': it went in 0\.2; write a class"):
        adaspec.BasePolicy  # noqa: B018


def test_one_path_will_do_where_several_may_be_given_and_a_report_says_it_all(trace, tmp_path):
    report = adaspec.evaluate_policies(str(trace), "fixed:neural:3", **QUICK)
    loaded = adaspec.load_policy("fixed:neural:3")
    assert loaded.name == "fixed:neural:3"
    again = adaspec.evaluate_policies(iter([trace]), iter([loaded]), **QUICK)
    assert report.document == again.document
    assert {entry["policy"] for entry in report.headline} == {"fixed:neural:3"}
    assert "none" in {row["policy"] for row in report.rows}
    assert any("costs are those of" in note for note in report.notes)
    assert json.loads(report.to_json())["rows"]
    assert "fixed:neural:3" in str(report)
    assert report.write(str(tmp_path / "report")) == tmp_path / "report"
    assert json.loads((tmp_path / "report" / "report.json").read_text())["rows"]


def test_a_policy_object_is_replayed_as_its_class_on_the_command_line_is(trace, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    spec = f"python:{Path(__file__).stem}:Drafts"
    policies = [Drafts(), spec, "fixed:neural:1"]

    def speeds(**charges):
        report = adaspec.evaluate_policies(trace, policies, engine="sync", **QUICK, **charges)
        return {row["policy"]: row["speedup"] for row in report.rows if row["workload"] == "all"}

    free = speeds(free_decisions=True)
    assert free["Drafts"] == free[spec] == pytest.approx(free["fixed:neural:1"])
    # Nobody knows what a class of one's own does to decide, so it pays for the most.
    charged = speeds()
    assert charged["Drafts"] == charged[spec] < charged["fixed:neural:1"]


def test_a_trace_is_written_with_the_manifest_that_its_requests_imply_or_the_one_given(
    trace, tmp_path
):
    requests = list(adaspec.read_trace(trace).requests())
    adaspec.write_trace(tmp_path / "t", requests, target="a/target", drafter="a/head")
    written = adaspec.read_trace(tmp_path / "t").manifest
    assert (written.target, written.drafter) == ("a/target", "a/head")
    assert (written.draft_cap, len(written.confidences)) == (8, 3)
    given = structs.replace(written, target="another")
    adaspec.write_trace(str(tmp_path / "u"), iter(requests), manifest=given)
    assert adaspec.read_trace(tmp_path / "u").manifest == given


def request_of(**changes):
    known = {"workload": "w", "id": "1", "prompt_tokens": [1], "output_tokens": [2, 3]}
    return adaspec.Request(**(known | changes))


def evaluated(**changes):
    given = {"policies": "none", **QUICK, **changes}
    return lambda trace, folder: adaspec.evaluate_policies(**{"traces": trace, **given})


def trained(**changes):
    given = {**QUICK, **changes}
    return lambda trace, folder: adaspec.train_policy(
        **{"traces": trace, "folder": folder / "p", **given}
    )


def written(*requests, **options):
    return lambda trace, folder: adaspec.write_trace(folder / "w", requests, **options)


def named(name):
    policy = Drafts()
    policy.name = name
    return policy


WRONG = {
    "read an empty path": lambda trace, folder: adaspec.read_trace(""),
    "evaluate a number as traces": evaluated(traces=[5]),
    "train into a number": trained(folder=7),
    "write nothing": written(),
    "write dicts": written({"prompt_tokens": [1]}),
    "write huge tokens": written(request_of(output_tokens=[2**40])),
    "write a number as an id": written(request_of(id=7)),
    "write half a surrogate as a workload": written(request_of(workload="\ud800")),
    "write long drafts": written(
        request_of(neural_accepted=[-1, 0], drafted_tokens=np.full((2, 200), -1))
    ),
    "write over a trace": lambda trace, folder: adaspec.write_trace(trace, [request_of()]),
    "load a number as a policy": lambda trace, folder: adaspec.load_policy(5),
    "load an unprintable name": lambda trace, folder: adaspec.load_policy(named("a\x1b")),
    "load what goes by a baseline's name": lambda trace, folder: adaspec.load_policy(named("none")),
    "evaluate no policy": evaluated(policies=[object()]),
    "evaluate two of one name": evaluated(policies=[Drafts(), Drafts()]),
    "evaluate at a text": evaluated(concurrency="1,8"),
    "evaluate with a text as truth": evaluated(prefill="yes"),
    "train with a misspelt option": trained(order=1),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_wrong_call_is_answered_by_one_clear_error(call, trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(refusal(adaspec.AdaspecError, call, trace, tmp_path)) > 20
    assert list(tmp_path.iterdir()) == []


def test_the_pages_example_runs_as_it_stands(tmp_path):
    need("docs")
    page = (CHECKOUT / "docs" / "api.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "eval").symlink_to(CHECKOUT / "eval")
    assert "copy-or-draft 4 " in run_python("-c", block, cwd=tmp_path).stdout
    assert {path.name for path in tmp_path.iterdir()} == {"eval", "traces", "mine", "report"}
