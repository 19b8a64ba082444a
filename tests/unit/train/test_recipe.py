import copy
import shutil
from dataclasses import asdict, replace

import msgspec.structs as structs
import numpy as np
import pytest
from refusals import refusal
from synthetic import Workload, synthesize, without_drafts, write_synthetic
from tiny_training import OPTIONS, TINY, train

from adaspec.api import evaluate_policies
from adaspec.cost.load import H100_LLAMA_3_1_8B
from adaspec.errors import AdaspecError
from adaspec.evaluate.evaluation import evaluate
from adaspec.evaluate.selection import SEEN, Wanted, content_hash, select
from adaspec.policy.artifact import load_artifact, write_artifact
from adaspec.policy.protocol import load_policy
from adaspec.predict.model import HEADS
from adaspec.replay.contender import parse_contender
from adaspec.replay.player import Compiled, Player
from adaspec.replay.recording import build_recording
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Request
from adaspec.trace.writer import write_trace
from adaspec.train.corpus import HELD_OUT, gather, held_out_of
from adaspec.train.recipe import FEW, metrics_of, verdict

pytestmark = pytest.mark.slow


def rewritten(source, path, change=lambda request: request, **manifest):
    """A copy of a trace, its manifest and every request changed."""
    reader = TraceReader(source)
    changed = structs.replace(reader.manifest, **manifest)
    write_trace(path, map(change, reader.requests()), manifest=changed)
    return path


def test_a_requests_content_alone_decides_its_side(trace, trained):
    everyone = gather([trace])
    alone = gather([trace], Wanted(exclude_workloads=("edits",)))
    for here, there in ((everyone.trained, alone.trained), (everyone.held_out, alone.held_out)):
        talk = [r.id for r in here.requests if r.workload == "talk"]
        assert talk == [r.id for r in there.requests]
    hashes = set(trained.manifest.training_requests)
    assert hashes == {content_hash(r) for r in everyone.trained.requests}
    assert not hashes & {content_hash(r) for r in everyone.held_out.requests}
    requests = list(TraceReader(trace).requests())
    renamed = [replace(r, id="other", workload="other") for r in requests]
    assert held_out_of(requests) == held_out_of(renamed)
    prompts = np.random.default_rng(0).integers(0, 1000, (4000, 8)).astype(np.int32)
    many = [replace(requests[0], prompt_tokens=prompt) for prompt in prompts]
    assert np.mean(held_out_of(many)) == pytest.approx(HELD_OUT, abs=0.03)


def test_the_folder_loads_as_the_policy_that_was_judged_and_says_so(trained):
    found = load_policy(trained.folder)
    assert found.name == "mine"
    assert found.manifest == trained.manifest
    assert sorted(found.manifest.forwards) == [1, 4]
    assert found.manifest.evidence == ("tokens", "confidences")
    recording = build_recording(trained.corpus.held_out.requests, 8)
    order = np.arange(len(recording), dtype=np.int32)
    player = Player(recording, H100_LLAMA_3_1_8B, 48)
    mine, theirs = (player.play(policy, order, 4) for policy in (found, trained.policy))
    assert mine.tokens_per_s == theirs.tokens_per_s
    assert trained.manifest.metrics["held_out"] == metrics_of(trained.report)
    card = (trained.folder / "CARD.md").read_text()
    for text in ("| edits | ", "fewer than 3 training requests", "### Calibration"):
        assert text in card, text
    assert str(trained.folder) not in card
    text = (trained.folder / "model.txt").read_text()
    headings = [line for line in text.splitlines() if line.startswith("====")]
    assert headings == [f"==== {g}: {head} ====" for g in sorted(HEADS) for head in HEADS[g]]
    assert "==== evidence: accepted_next ====" in text
    assert "num_threads" not in text


def test_same_traces_and_seed_give_the_same_bytes_under_any_name_and_number_of_jobs(
    trace, trained, tmp_path
):
    again = train(trace, tmp_path / "another name", replace(OPTIONS, jobs=2))
    mine, theirs = (
        {path.name: path.read_bytes() for path in each.folder.iterdir()}
        for each in (trained, again)
    )
    assert mine == theirs


def test_a_trace_without_neural_drafts_trains_an_ngram_only_policy(trace, tmp_path):
    write_trace(tmp_path / "bare", map(without_drafts, TraceReader(trace).requests()))
    product = train(tmp_path / "bare", tmp_path / "policy")
    assert product.manifest.sources == ("ngram",)
    assert product.manifest.neural_cap is None
    assert "n-gram only" in (tmp_path / "policy" / "CARD.md").read_text()
    rows = [row for row in product.report["rows"] if row["policy"] == "policy"]
    assert {row["neural_steps_share"] for row in rows} == {0}
    # On a trace with a drafter it keeps to what it knows.
    with_drafter = build_recording(list(TraceReader(trace).requests())[:6], 8)
    played = Player(with_drafter, H100_LLAMA_3_1_8B, 48).play(
        load_policy(tmp_path / "policy"), np.arange(6, dtype=np.int32), 2
    )
    assert played.neural_steps == 0


def test_a_deep_drafter_of_unknown_confidences_is_learned_for_an_async_engine(tmp_path):
    deep = Workload("deep", (30, 60), (20, 50), 0.3, 8.0, 0.1, 0.95, 0.5)
    write_synthetic(tmp_path / "sure", 0, (deep,), requests_per_workload=20, neural_cap=12)
    unsure = rewritten(
        tmp_path / "sure",
        tmp_path / "unsure",
        lambda r: replace(r, confidences=np.full_like(r.confidences, np.nan)),
    )
    options = replace(OPTIONS, engine="async", concurrency=(2,), resamples=0)
    product = train(unsure, tmp_path / "policy", options)
    assert load_artifact(tmp_path / "policy").manifest == product.manifest
    assert product.manifest.neural_cap == 8, "as deep as the curves reach"
    assert product.manifest.engine == product.report["engine"] == "async"


def test_eval_leaves_out_what_the_policy_was_trained_on_or_marks_its_rows(trace, trained):
    assert isinstance(parse_contender(str(trained.folder)), Compiled)
    report = evaluate_policies(trace, trained.folder, **asdict(OPTIONS))
    trained_on, held_out = (
        each.counts for each in (trained.corpus.trained, trained.corpus.held_out)
    )
    traces = report.document["traces"]
    assert traces["requests"] == held_out
    assert traces["left_out"] == {name: {SEEN: count} for name, count in trained_on.items()}
    assert report.headline == trained.report["headline"]
    requests = TraceReader(trace).requests()
    seen = frozenset(content_hash(each) for each in requests if each.workload == "edits")
    with pytest.raises(AdaspecError, match=r"workload 'edits'.*--include-training"):
        select([trace], Wanted(seen=seen))
    assert len(report.headline) == 6
    policy, talk = load_policy(trained.folder), select([trace], Wanted(workload="talk"))
    everyone = evaluate(talk, [policy], H100_LLAMA_3_1_8B, replace(OPTIONS, concurrency=(2,)))
    for rows, marked in ((report.rows, set()), (everyone["rows"], {"mine"})):
        assert {row["policy"] for row in rows if "seen_in_training" in row["detail"]} == marked


@pytest.mark.parametrize("lead", [0.05, -0.02])
def test_a_verdict_gives_the_leads_at_each_load_and_names_a_rule_that_is_ahead(trained, lead):
    report = copy.deepcopy(trained.report)
    for entry in report["headline"]:
        entry["lift_over_static_best"] = lead
    *lines, last = verdict(report)
    assert last.startswith("judged on ") and last.endswith("to be sure")
    told = lines if lead > 0 else lines[::2]
    assert [line.partition(" ")[0] for line in told] == ["1", "4"]
    assert all("x no speculation, " in line and f", {lead:+.1%} (" in line for line in told)
    ahead = [line for line in lines if "is ahead: if you serve at this load" in line]
    assert len(ahead) == (0 if lead > 0 else 2)
    report["traces"]["requests"] = {"edits": FEW}
    assert last not in verdict(report)


def copies(trace, folder, *manifests):
    """Copies of the trace with these manifests, requests under names of their own."""
    return [
        rewritten(trace, folder / str(at), lambda r, at=at: replace(r, id=f"{at} {r.id}"), **each)
        for at, each in enumerate(manifests)
    ]


def test_traces_of_several_targets_or_vocabularies_are_refused_unless_asked_for(trace, tmp_path):
    first, second = (f"128-{digit * 16}" for digit in "ab")
    one, two = ({"tokenizer": name, "vocabulary_hash": first} for name in ("one", "two"))
    unknown = [{"tokenizer": name} for name in ("one", "two")]
    mixed = {
        "target": copies(trace, tmp_path / "target", {}, {"target": "other/target"}),
        "vocabulary": copies(trace, tmp_path / "vocabulary", one, {"vocabulary_hash": second}),
        "tokenizer": copies(trace, tmp_path / "tokenizer", one, *unknown),
    }
    for what, traces in mixed.items():
        with pytest.raises(AdaspecError, match=rf"differ in their {what}.*--general"):
            gather(traces)
        gathered = gather(traces, general=True)
        assert gathered.vocabulary_hash is gathered.tokenizer is gathered.trained.target is None
    # A vocabulary by two names is one, and where one is not known, the names must agree. Of another
    # its size is known alone.
    sized = {"tokenizer": "one", "vocabulary_hash": "128"}
    for at, others in enumerate((two, unknown[0], sized)):
        corpus = gather(copies(trace, tmp_path / f"alike-{at}", one, others))
        assert corpus.vocabulary_hash == first
        assert corpus.tokenizer == ("one, two", "one", "one")[at]


def test_requests_in_which_nothing_repeats_are_refused_before_anything_is_written(tmp_path):
    fresh = np.arange(2400).reshape(60, 2, 20)
    requests = [Request("w", str(at), *each) for at, each in enumerate(fresh)]
    write_trace(tmp_path / "hopeless", requests)
    line = refusal(AdaspecError, train, tmp_path / "hopeless", tmp_path / "policy")
    assert "nothing to learn from" in line
    assert [path.name for path in tmp_path.iterdir()] == ["hopeless"]


def test_a_damaged_or_foreign_policy_is_refused(trained, tmp_path):
    found = load_artifact(trained.folder)
    changes = {
        "features": (1000, "retrain it with 'adaspec train'"),
        "evidence": ((), "which its networks do not fit"),
    }
    for field, (value, said) in changes.items():
        manifest = structs.replace(found.manifest, **{field: value})
        write_artifact(tmp_path / field, manifest, found.networks, found.tables, "text", "card")
        line = refusal(AdaspecError, parse_contender, str(tmp_path / field))
        assert said in line and field in line
    shutil.copytree(trained.folder, tmp_path / "named" / "none")
    with pytest.raises(AdaspecError, match="rename it"):
        parse_contender(str(tmp_path / "named" / "none"))


def test_a_general_policy_learns_from_two_models_and_knows_neither(trace, tmp_path):
    others = [
        replace(each, drafted_tokens=None, confidences=None)
        for each in synthesize(1, TINY, requests_per_workload=24)
    ]
    write_trace(tmp_path / "bare", others, target="other/target", drafter="other")
    made = train(tmp_path / "bare", tmp_path / "general", more_traces=[trace], general=True)
    manifest = made.manifest
    assert (manifest.target, manifest.tokenizer, manifest.vocabulary_hash) == (None, None, None)
    assert manifest.drafter is None
    assert manifest.evidence == ("tokens", "confidences")
    assert len(made.policy.model.table_arrays()["keys"]) == 0
    assert "any model" in (made.folder / "CARD.md").read_text()
    assert load_policy(made.folder).model.reads_evidence
