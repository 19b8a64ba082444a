"""Requests whose drafts were recorded on another output, or not at all, teach by their text."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from synthetic import synthesize, without_drafts
from tiny_training import OPTIONS, TINY, later_turn, train

from adaspec.cost.load import H100_LLAMA_3_1_8B
from adaspec.evaluate.selection import Wanted, content_hash
from adaspec.trace.reader import TraceReader
from adaspec.trace.writer import write_trace
from adaspec.train.corpus import gather
from adaspec.train.recipe import cross_fit
from adaspec.train.trainer import Trainer

pytestmark = pytest.mark.slow

OTHER_ANSWER = np.arange(20, dtype=np.int32)


def unpaired(request, **changes):
    counts = np.zeros(15, np.int16)
    counts[0] = -1
    return replace(without_drafts(request), neural_accepted=counts, **changes)


@pytest.fixture(scope="module")
def corpus(trace):
    return gather([trace])


@pytest.fixture(scope="module")
def others(trace, corpus, tmp_path_factory):
    """A trace of unpaired requests.

    Among them are, of each side, a later turn of one request, another answer to a second, and an
    earlier turn of a third.
    """
    path = tmp_path_factory.mktemp("unpaired") / "others"
    manifest = structs.replace(TraceReader(trace).manifest, draft_cap=None, confidences=())
    requests = [unpaired(each) for each in synthesize(1, TINY, requests_per_workload=12)]
    for side in (corpus.trained, corpus.held_out):
        first, second, third, *_ = side.requests
        requests += [
            unpaired(third, id=f"{third.id} earlier", prompt_tokens=third.prompt_tokens[:-1]),
            unpaired(later_turn(first)),
            unpaired(second, id=f"{second.id} again", output_tokens=OTHER_ANSWER),
        ]
    write_trace(path, requests, manifest=manifest)
    return path


def test_no_text_of_a_dialogue_that_is_judged_is_learned(trace, others, corpus, tmp_path):
    texts = map(without_drafts, synthesize(2, TINY, requests_per_workload=3))
    write_trace(tmp_path / "texts", texts, target="synthetic")
    found = gather([trace, others, tmp_path / "texts"])
    for side in ("trained", "held_out"):
        mine, before = getattr(found, side), getattr(corpus, side)
        assert [r.id for r in mine.requests] == [r.id for r in before.requests]
    assert found.held_out.unpaired == ()
    ids = [request.id for request in found.trained.unpaired]
    assert f"{corpus.trained.requests[0].id} later 0" in ids
    assert f"{corpus.trained.requests[1].id} again" in ids
    assert f"{corpus.trained.requests[2].id} earlier" in ids
    assert len(ids) == 27 + 6
    without = gather([trace, others], Wanted(exclude_workloads=("edits",))).trained.unpaired
    assert {request.workload for request in without} == {"talk"}


def test_a_policy_knows_their_text_and_says_so(trace, others, trained, tmp_path):
    product = train(trace, tmp_path / "policy", more_traces=[others])
    found = gather([trace, others]).trained
    hashes = {content_hash(request) for request in (*found.requests, *found.unpaired)}
    assert set(product.manifest.training_requests) == hashes
    assert "text of 27 unpaired requests" in (product.folder / "CARD.md").read_text()
    mine, alone = (each.policy.model.tables.base for each in (product, trained))
    assert (mine[0] == alone[0]).all()  # of neural drafts
    assert (mine[1] != alone[1]).any()  # of copied tokens


def test_a_cross_fit_learns_their_text_too_and_nothing_of_what_is_excluded(
    trace, others, monkeypatch
):
    def stop(trainer, members):
        raise RuntimeError(len(trainer.maker._dialogue_of_text), trainer.recording.requests)

    monkeypatch.setattr(Trainer, "train", stop)
    with pytest.raises(RuntimeError) as stopped:
        cross_fit([trace, others], 2, H100_LLAMA_3_1_8B, OPTIONS, Wanted(exclude=("talk/0-3",)))
    texts, requests = stopped.value.args
    assert texts == 30
    assert len(requests) == 47
    assert ("talk", "0-3") not in [(each.workload, each.id) for each in requests]
