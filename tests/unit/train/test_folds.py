import dataclasses

import numpy as np
import pytest
from synthetic import synthesize
from tiny_training import OPTIONS, TINY, later_turn

from adaspec.cost.load import H100_LLAMA_3_1_8B
from adaspec.errors import TrainingError
from adaspec.evaluate.selection import Selection, Wanted, select
from adaspec.train.corpus import held_out_of
from adaspec.train.recipe import check_folds, deal
from adaspec.train.trainer import Trainer


def requests_of(count=12, workloads=TINY):
    return list(synthesize(0, workloads, requests_per_workload=count))


def test_only_what_a_request_says_decides_its_fold():
    requests = requests_of(13)
    dealt = deal(requests, 4)
    for workload in ("edits", "talk"):
        mine = [fold for fold, r in zip(dealt, requests, strict=True) if r.workload == workload]
        counts = np.bincount(mine, minlength=4)
        assert counts.max() - counts.min() == 1, "every fold has its share"
    renamed = [dataclasses.replace(r, id=f"other {r.id}") for r in reversed(requests)]
    assert list(deal(renamed, 4)) == list(dealt)[::-1]
    talk = [r.workload == "talk" for r in requests]
    alone = deal([r for r in requests if r.workload == "talk"], 4)
    assert list(alone) == list(dealt[talk])


def dialogues(requests):
    """Dialogues of three turns, the third behind either second one; last turns come first."""
    second = [later_turn(r) for r in requests]
    return [*(later_turn(r, 1) for r in second), *second, *requests]


def test_all_turns_of_a_dialogue_are_on_one_side_and_count_once():
    requests = requests_of()
    count = len(requests)
    for sides in (deal(dialogues(requests), 3), held_out_of(dialogues(requests))):
        third, second, first = (list(sides[at : at + count]) for at in (0, count, 2 * count))
        assert third == second == first
        assert len(set(first)) > 1
    assert held_out_of(dialogues(requests))[-count:] == held_out_of(requests)
    requests = requests_of(9, TINY[:1])
    dealt = deal([*requests, *(later_turn(requests[0], n) for n in range(30))], 3)
    assert list(np.bincount(dealt[:9])) == [3, 3, 3]


def test_answers_to_the_same_first_prompt_are_of_one_dialogue_where_it_goes_on():
    first = requests_of(4, TINY[:1])
    again = [dataclasses.replace(r, output_tokens=r.output_tokens[::-1]) for r in first]
    on = [*first, *again, *map(later_turn, first)]
    assert list(deal(on, 4)[:4]) == list(deal(on, 4)[4:8])
    assert len(set(deal([*first, *again], 8))) == 8


def trainer_on(requests):
    return Trainer(Selection(tuple(requests), 8, (), None, None), H100_LLAMA_3_1_8B, OPTIONS)


def test_a_policys_own_folds_keep_dialogues_together():
    requests = requests_of(6)
    trainer = trainer_on(dialogues(requests))
    recording = trainer.recording
    parts = np.argmax(trainer._folds(np.ones(len(recording), np.bool_)), axis=0)
    first = parts[-len(requests) :]
    assert list(parts) == [*first, *first, *first]
    for workload in (0, 1):
        assert list(np.bincount(first[recording.workload[-len(requests) :] == workload])) == [2] * 3


def test_of_more_positions_than_are_surveyed_each_workload_gives_its_share():
    trainer = trainer_on(requests_of(30))
    recording = trainer.recording
    everyone = np.ones(len(recording), np.bool_)
    lengths = recording.columns.length
    some = trainer._some(everyone, int(lengths.sum()) // 3)
    assert 0.2 < some.mean() < 0.5
    assert list(np.bincount(recording.workload[some])) == [10, 10]
    assert trainer._some(everyone, int(lengths.sum())).all()


def test_folds_that_leave_nothing_to_judge_or_to_learn_are_refused(trace):
    selection = select([trace], Wanted())
    few = tuple(r for r in selection.requests if r.workload == "talk")[:7]
    edits = tuple(r for r in selection.requests if r.workload == "edits")
    small = dataclasses.replace(selection, requests=(*edits, *few))
    check_folds(selection, 5)
    with pytest.raises(TrainingError, match="--crossfit 1: 2 folds or more"):
        check_folds(selection, 1)
    with pytest.raises(TrainingError, match=r"'talk' has 7 .*leaves 3 .*training 6"):
        check_folds(small, 2)
    check_folds(small, 7)
    talking = dataclasses.replace(small, requests=tuple(dialogues(small.requests)))
    with pytest.raises(TrainingError, match=r"'talk' has 7 .*\(turns of a .*a fold needs one"):
        check_folds(talking, 8)
