"""eval/emulate_drafts.py: the laws that its emulated evidence follows, and no others."""

import itertools
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from synthetic import synthesize

from adaspec.draft.index import match_positions
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES, LoggedStep, Request
from adaspec.trace.writer import TraceWriter

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "eval" / "emulate_drafts.py"
MARGIN = CONFIDENCES.index("margin")


def run(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def trace(path, requests, **fields):
    manifest = Manifest(**{"kind": "dense", "neural_cap": 20, "source": "a test", **fields})
    with TraceWriter(path, manifest) as writer:
        for request in requests:
            writer.add(request)
    return path


def small(id, output, accepted, prompt=(7,)):
    return Request(
        "w",
        id,
        np.array(prompt, np.int32),
        np.array(output, np.int32),
        np.array(accepted, np.int16),
    )


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """A trace like the public ones: deep counts, nothing of the drafts, some requests unpaired."""
    requests = [
        replace(request, drafted_tokens=None, confidences=None)
        for request in synthesize(5, requests_per_workload=25, neural_cap=20)
    ]
    unpaired = replace(requests[0], id="unpaired", neural_accepted=requests[0].neural_accepted[:9])
    unpaired.neural_accepted[1:] = 0
    path = tmp_path_factory.mktemp("traces") / "public"
    return trace(path, [*requests, unpaired], target="T", synthetic=True)


@pytest.fixture(scope="module")
def made(public):
    path = public.with_name("made")
    done = run(public, path, "--auc", 0.85, "--seed", 3)
    assert done.returncode == 0, done.stderr
    assert "1 unpaired requests left out" in done.stdout
    return path


@pytest.fixture(scope="module")
def pairs(public, made):
    """(recorded, emulated) requests."""
    recorded = [request for request in TraceReader(public).requests() if request.paired]
    emulated = list(TraceReader(made).requests())
    assert [request.id for request in recorded] == [request.id for request in emulated]
    return list(zip(recorded, emulated, strict=True))


def test_the_manifest_says_that_the_evidence_is_emulated(public, made):
    before, after = TraceReader(public).manifest, TraceReader(made).manifest
    assert (after.neural_cap, after.draft_cap, after.confidences) == (8, 8, ("margin",))
    for part in ("EMULATED", "auc 0.85, seed 3", "a test"):
        assert part in after.source
    assert (after.target, after.synthetic) == (before.target, True)


def test_drafts_fit_the_recorded_counts_and_go_on_as_the_trace_does(pairs):
    """A wrong token is the look-up's candidate or one that follows the token before elsewhere."""
    outputs = [recorded.output_tokens.tolist() for recorded, _ in pairs]
    following = defaultdict(set)
    for output in outputs:
        for one, other in itertools.pairwise(output):
            following[one].add(other)
    anywhere = set(itertools.chain(*outputs))
    for recorded, emulated in pairs:
        accepted = emulated.neural_accepted
        np.testing.assert_array_equal(emulated.output_tokens, recorded.output_tokens)
        np.testing.assert_array_equal(accepted, np.minimum(recorded.neural_accepted, 8))
        output, drafted = emulated.output_tokens.tolist(), emulated.drafted_tokens.tolist()
        context = [*emulated.prompt_tokens.tolist(), *output]
        start = match_positions(emulated.prompt_tokens, emulated.output_tokens).start
        for at in range(1, len(output)):
            taken = int(accepted[at])
            assert drafted[at][:taken] == output[at : at + taken]
            for step in range(taken, 8):
                true = output[at + step] if at + step < len(output) else -1
                before = drafted[at][step - 1] if step else output[at - 1]
                others = following[before] - {true} or anywhere
                copied = step == taken and true >= 0 and context[start[at + step]]
                assert drafted[at][step] in others | {copied}
                assert step > taken or drafted[at][step] != true


@pytest.mark.parametrize(
    ("common", "prompt", "share"),
    [
        # Behind 1 2 1 the look-up says 2; the truth is 4, and else only 3 follows a 1.
        ([[5, 1, 3]] * 9, (1, 2), 0.3),
        # 1 is followed by 2 thrice as often as by 3, and no look-up finds it.
        ([[5, 1, 2 if at % 4 else 3] for at in range(40)], (7,), 0.75),
    ],
    ids=["candidates come in three of ten", "followers as often as they follow"],
)
def test_wrong_tokens_are_drawn_by_their_laws(tmp_path, common, prompt, share):
    requests = [small(f"c{at}", output, [-1, 0, 0]) for at, output in enumerate(common)]
    requests += [small(f"a{at}", [1, 4], [-1, 0], prompt) for at in range(2_000)]
    trace(tmp_path / "in", requests)
    assert run(tmp_path / "in", tmp_path / "out", "--seed", 1).returncode == 0
    drawn = Counter(
        int(request.drafted_tokens[1, 0])
        for request in TraceReader(tmp_path / "out").requests()
        if request.id.startswith("a")
    )
    assert set(drawn) == {2, 3}
    assert abs(drawn[2] / 2_000 - share) < 0.04


@pytest.mark.parametrize("auc", [0.5, 0.92])
def test_the_margins_tell_accepted_from_rejected_as_well_as_asked(public, tmp_path, auc):
    assert run(public, tmp_path / "out", "--auc", auc, "--seed", 4).returncode == 0
    right, margins = [], []
    for request in TraceReader(tmp_path / "out").requests():
        right.append((np.arange(8) < request.neural_accepted[1:, None]).ravel())
        margins.append(request.confidences[1:, :, MARGIN].ravel())
        assert np.isnan(np.delete(request.confidences, MARGIN, axis=2)).all()
    right, margins = np.concatenate(right), np.concatenate(margins)
    assert abs(roc_auc_score(right, margins) - auc) < 0.01
    for which in (right, ~right):
        assert abs(margins[which].std() - 1) < 0.02
    assert abs(margins[right].mean() + margins[~right].mean()) < 0.03


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(public, made, tmp_path):
    def contents(folder):
        return {each.name: each.read_bytes() for each in folder.iterdir()}

    assert run(public, tmp_path / "t", "--seed", 3).returncode == 0
    assert contents(tmp_path / "t") == contents(made)
    assert run(public, tmp_path / "t", "--seed", 4, "--force").returncode == 0
    assert contents(tmp_path / "t") != contents(made)


def test_short_and_monotonous_outputs_and_low_caps_have_drafts_too(tmp_path):
    requests = [
        small("empty", [], []),
        small("one", [3], [-1]),
        small("same", [3, 3, 3, 3], [-1, 3, 0, 0]),
    ]
    trace(tmp_path / "in", requests, neural_cap=3)
    done = run(tmp_path / "in", tmp_path / "out", "--seed", 0)
    assert done.returncode == 0, done.stderr
    *_, same = TraceReader(tmp_path / "out").requests()
    assert TraceReader(tmp_path / "out").manifest.neural_cap == 3
    assert same.drafted_tokens[1, :3].tolist() == [3, 3, 3]
    assert same.drafted_tokens[2, 0] != 3
    assert (same.drafted_tokens[1:] >= 0).all()


def test_what_cannot_be_emulated_is_one_line_and_leaves_nothing(public, tmp_path):
    with TraceWriter(tmp_path / "logged", Manifest(kind="logged")) as writer:
        writer.add(LoggedStep("w", "a", 0, draft_len=1, accepted=0))
    bare = replace(small("a", [1, 2], [-1, 0]), neural_accepted=None)
    trace(tmp_path / "bare", [bare], neural_cap=None)
    trace(tmp_path / "unpaired", [small("a", [1, 2, 3], [-1, 0])])
    there = sorted(tmp_path.iterdir())
    for source, words, said in (
        (tmp_path / "logged", ["--seed", "1"], "is a logged trace: give a dense one"),
        (tmp_path / "bare", ["--seed", "1"], "no neural drafter ran"),
        (tmp_path / "unpaired", ["--seed", "1"], "none of its 1 requests is paired"),
        (tmp_path / "none", ["--seed", "1"], "there is no such folder"),
        (public, ["--auc", "1", "--seed", "1"], "--auc"),
        (public, ["--auc", "nan", "--seed", "1"], "--auc"),
        (public, ["--seed", "-1"], "--seed"),
        (public, [], "--seed"),
        (public, ["--seed", "1", "--sede", "1"], "--sede"),
    ):
        done = run(source, tmp_path / "out", *words)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
        assert sorted(tmp_path.iterdir()) == there
    assert "exists: " in run(public, tmp_path / "bare", "--seed", 3).stderr
    assert "is the trace to read" in run(public, public, "--seed", 3, "--force").stderr
