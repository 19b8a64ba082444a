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


@pytest.fixture(scope="module")
def following(public):
    """How often each token follows each in the outputs."""
    counts = defaultdict(Counter)
    for request in TraceReader(public).requests():
        for one, other in itertools.pairwise(request.output_tokens.tolist()):
            counts[one][other] += 1
    return {one: dict(others) for one, others in counts.items()}


@pytest.fixture(scope="module")
def anywhere(public):
    return {
        token
        for request in TraceReader(public).requests()
        for token in request.output_tokens.tolist()
    }


def rejections(emulated):
    """(position, first rejected step) at every position."""
    accepted = emulated.neural_accepted.tolist()
    return [(at, accepted[at]) for at in range(1, len(accepted)) if accepted[at] < 8]


def candidates(request):
    """The n-gram candidate at each position, -1 where none."""
    context = np.concatenate([request.prompt_tokens, request.output_tokens])
    start = match_positions(request.prompt_tokens, request.output_tokens).start
    return np.where(start >= 0, context[start], -1).tolist()


def test_the_manifest_says_that_the_evidence_is_emulated(public, made):
    before, after = TraceReader(public).manifest, TraceReader(made).manifest
    assert (after.neural_cap, after.draft_cap, after.confidences) == (8, 8, ("margin",))
    assert "EMULATED" in after.source
    assert "auc 0.85, seed 3" in after.source
    assert after.source.endswith("a test")
    assert (after.target, after.synthetic) == (before.target, True)


def test_counts_are_the_recorded_ones_up_to_eight(pairs):
    for recorded, emulated in pairs:
        np.testing.assert_array_equal(emulated.output_tokens, recorded.output_tokens)
        np.testing.assert_array_equal(
            emulated.neural_accepted, np.minimum(recorded.neural_accepted, 8)
        )


def test_accepted_tokens_are_the_outputs_and_the_first_rejected_one_is_not(pairs):
    for _, emulated in pairs:
        output, drafted = emulated.output_tokens, emulated.drafted_tokens
        assert (drafted[1:] >= 0).all()
        for at in range(1, len(output)):
            taken = emulated.neural_accepted[at]
            assert (drafted[at, :taken] == output[at : at + taken]).all()
            if taken < 8 and at + taken < len(output):
                assert drafted[at, taken] != output[at + taken]


def test_a_rejected_token_is_the_candidate_or_follows_the_one_before_elsewhere(
    pairs, following, anywhere
):
    for _, emulated in pairs:
        output, drafted = emulated.output_tokens.tolist(), emulated.drafted_tokens.tolist()
        looked_up = candidates(emulated)
        for at, taken in rejections(emulated):
            for step in range(taken, 8):
                token = drafted[at][step]
                before = drafted[at][step - 1] if step else output[at - 1]
                true = output[at + step] if at + step < len(output) else -1
                others = set(following.get(before, ())) - {true} or anywhere
                first = step == taken and true >= 0
                assert token in others or (first and token == looked_up[at + step])


def test_three_in_ten_are_the_candidates_where_nothing_else_makes_them_so(tmp_path):
    # Behind 1 2 1 the look-up says 2; the truth is 4, and else only 3 follows a 1.
    common = [small(f"c{n}", [5, 1, 3], [-1, 0, 0]) for n in range(9)]
    asked = [small(f"a{n}", [1, 4], [-1, 0], prompt=(1, 2)) for n in range(2_000)]
    trace(tmp_path / "in", [*common, *asked])
    assert run(tmp_path / "in", tmp_path / "out", "--seed", 1).returncode == 0
    drawn = Counter(
        int(request.drafted_tokens[1, 0])
        for request in TraceReader(tmp_path / "out").requests()
        if request.id.startswith("a")
    )
    assert set(drawn) == {2, 3}
    assert abs(drawn[2] / 2_000 - 0.3) < 0.04


def test_over_a_trace_candidates_come_as_often_as_the_laws_say(pairs, following):
    agree, expected = [], []
    for _, emulated in pairs:
        output, looked_up = emulated.output_tokens.tolist(), candidates(emulated)
        for at, taken in rejections(emulated):
            if (end := at + taken) >= len(output) or looked_up[end] in (-1, output[end]):
                continue
            others = dict(following[output[end - 1]])
            others.pop(output[end])
            chance = others.get(looked_up[end], 0) / max(1, sum(others.values()))
            expected.append(0.3 + 0.7 * chance)
            agree.append(emulated.drafted_tokens[at, taken] == looked_up[end])
    assert len(agree) > 500
    assert abs(np.mean(agree) - np.mean(expected)) < 4 * 0.5 / len(agree) ** 0.5


def test_followers_are_drawn_as_often_as_they_follow(tmp_path):
    # 1 is followed by 2 thrice as often as by 3, and by 4 where all is rejected. No look-up there:
    # the prompt and the text before hold no 1.
    common = [small(f"c{n}", [5, 1, 2 if n % 4 else 3], [-1, 0, 0]) for n in range(40)]
    asked = [small(f"a{n}", [1, 4], [-1, 0]) for n in range(1_000)]
    trace(tmp_path / "in", [*common, *asked])
    assert run(tmp_path / "in", tmp_path / "out", "--seed", 1).returncode == 0
    drawn = Counter(
        int(request.drafted_tokens[1, 0])
        for request in TraceReader(tmp_path / "out").requests()
        if request.id.startswith("a")
    )
    assert set(drawn) == {2, 3}
    assert abs(drawn[2] / 1_000 - 0.75) < 0.06


@pytest.mark.parametrize("auc", [0.5, 0.85, 0.92])
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


def logged(path):
    with TraceWriter(path, Manifest(kind="logged")) as writer:
        writer.add(LoggedStep("w", "a", 0, draft_len=1, accepted=0))
    return path


def without_neural(path):
    rows = [replace(small("a", [1, 2], [-1, 0]), neural_accepted=None)]
    return trace(path, rows, neural_cap=None)


def unpaired(path):
    return trace(path, [small("a", [1, 2, 3], [-1, 0])])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (logged, "is a logged trace: give a dense one"),
        (without_neural, "no neural drafter ran"),
        (unpaired, "none of its 1 requests is paired"),
        (lambda path: path, "there is no such folder"),
    ],
)
def test_a_trace_that_cannot_be_emulated_is_one_line_and_leaves_nothing(tmp_path, make, said):
    done = run(make(tmp_path / "in"), tmp_path / "out", "--seed", 1)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not [each.name for each in tmp_path.iterdir() if each.name != "in"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--auc", "1", "--seed", "1"),
        ("--auc", "0.3", "--seed", "1"),
        ("--auc", "high", "--seed", "1"),
        ("--auc", "nan", "--seed", "1"),
        ("--seed", "-1"),
        (),
        ("--seed", "1", "--sede", "1"),
    ],
)
def test_a_wrong_argument_is_one_line(public, tmp_path, arguments):
    done = run(public, tmp_path / "out", *arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_and_the_trace_itself_are_not_overwritten(public, made):
    assert "exists: " in run(public, made, "--seed", 3).stderr
    assert "is the trace to read" in run(public, public, "--seed", 3, "--force").stderr
