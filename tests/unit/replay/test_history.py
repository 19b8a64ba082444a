"""What recorded requests know of earlier answers: all that had been given by then, and no more."""

from dataclasses import replace

import numpy as np
import pytest
from answer_search import plain_search
from random_recordings import NEURAL_CAP, random_requests, recorded
from reference import common
from test_suffix import LookUp

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.draft.answers import AnswerIndex, is_better
from adaspec.draft.positions import match_positions
from adaspec.evaluate.evaluation import evaluate
from adaspec.evaluate.options import Options
from adaspec.evaluate.selection import Selection
from adaspec.replay.contender import parse_contender
from adaspec.replay.history import GivenAnswers, History, answered_before
from adaspec.replay.paths import walk_rule
from adaspec.replay.recording import START, build_recording
from adaspec.replay.suffix import SuffixMemory, why_not_here
from adaspec.trace.schema import Request


def requests_of(seed: int, count: int, **kinds) -> list[Request]:
    found = random_requests(seed, count, tokens=True, **kinds)
    return [recorded(request, str(at)) for at, request in enumerate(found)]


def request(prompt: list[int], output: list[int], name: str = "r") -> Request:
    return Request("w", name, np.array(prompt, np.int32), np.array(output, np.int32))


def outputs(index: AnswerIndex) -> list[list[int]]:
    """The answers that an index knows, the oldest first."""
    held: list[list[int]] = [[]]
    owners = index._ring.owners
    for token, owner in zip(index.stored.tolist(), owners.tolist(), strict=True):
        if owner > 0:
            held[-1].append(token)
        elif held[-1]:
            held.append([])
    return [each for each in held if each]


def turns_of(seed: int, count: int = 12) -> list[Request]:
    """Requests among which are twins and dialogues of up to three turns."""
    rng = np.random.default_rng(seed)
    asked: list[Request] = []
    for name in range(count):
        prompt = rng.integers(1, 100, 4).tolist()
        output = rng.integers(1, 100, int(rng.integers(3, 7))).tolist()
        if asked and rng.random() < 0.3:
            earlier = asked[int(rng.integers(len(asked)))]
            prompt = [*earlier.prompt_tokens.tolist(), *earlier.output_tokens.tolist(), name + 1]
        elif asked and rng.random() < 0.3:
            output = asked[int(rng.integers(len(asked)))].output_tokens.tolist()
        asked.append(request(prompt, output, str(name)))
    return asked


def may_know(asked: Request, answer: Request) -> bool:
    """Whether this is not the request's own answer, nor one of a later turn, by their content."""
    prompt, of = asked.prompt_tokens.tolist(), answer.prompt_tokens.tolist()
    later = len(of) > len(prompt) and of[: len(prompt)] == prompt
    return not later and asked.output_tokens.tolist() != answer.output_tokens.tolist()


def known_by_definition(entries: list[Request], at: int, running: int) -> set[tuple[int, ...]]:
    """What the entry may know: ended by then, and of nobody who runs, in no clever way."""
    run = entries[max(0, at - running + 1) : at + 1]
    return {
        tuple(ended.output_tokens.tolist())
        for ended in entries[: max(0, at - running + 1)]
        if all(
            may_know(each, other)
            for each in run
            for other in entries
            if other.output_tokens.tolist() == ended.output_tokens.tolist()
        )
    }


@pytest.mark.parametrize("running", [1, 2, 5, 17])
def test_an_entry_knows_what_had_ended_in_its_order_and_nothing_of_who_runs(running):
    seen = 0
    for seed in range(12):
        rng, asked = np.random.default_rng(seed), turns_of(seed)
        entries = [asked[at] for at in rng.integers(0, len(asked), 40)]
        history = History(running=running, in_turn=True)
        for at, (number, known) in enumerate(history.views(entries)):
            assert number == at
            found = list(map(tuple, outputs(known)))
            assert len(found) == len(set(found)), "each once"
            assert set(found) == known_by_definition(entries, at, running)
            assert all(
                may_know(entries[at], other)
                for other in asked
                if tuple(other.output_tokens.tolist()) in found
            ), "never an own answer, in no pass, nor that of a later turn"
            seen += len(found)
    assert seen > 100


@pytest.mark.parametrize("running", [1, 3, 8])
def test_suffix_decoding_knows_the_same_answers_and_those_that_grow(running):
    for seed in range(12):
        rng, asked = np.random.default_rng(seed), turns_of(seed)
        before = [request([7], [1_000 + step for step in range(4)], "before")]
        order = rng.integers(0, len(asked), 40).tolist()
        cache = LookUp()
        memory = SuffixMemory(GivenAnswers(asked), cache, before)
        views = History(tuple(before), running=running, in_turn=True).views(
            [asked[at] for at in order]
        )
        numbers: list[int] = []
        for at, (_, known) in enumerate(views):
            if at >= running:
                ended = at - running
                rest = asked[order[ended]].output_tokens[1:]
                memory.grow(order[ended], numbers[ended], rest)
                memory.stop(order[ended], numbers[ended])
            numbers.append(memory.start(order[at]))
            memory.grow(order[at], numbers[at], asked[order[at]].output_tokens[:1])
            whole = [text for number, text in cache.answers.items() if number not in cache.text]
            assert sorted(whole) == sorted(outputs(known))
            for number in cache.answers.keys() & cache.text.keys():
                grows = asked[order[numbers.index(number)]]
                for other in set(numbers) & cache.text.keys() - {number}:
                    runs = asked[order[numbers.index(other)]]
                    copies = runs.output_tokens.tolist() == grows.output_tokens.tolist()
                    assert may_know(runs, grows) or (copies and number > other)


def test_turns_come_in_their_order_and_later_ones_are_never_known():
    first = request([1, 2, 3], [11, 12, 13, 14], "first")
    second = request([1, 2, 3, 11, 12, 13, 14, 4], [12, 13, 14, 15, 16], "second")
    others = [request([9, at + 1], [50 + at, 60, 70], f"o{at}") for at in range(5)]
    for seed in range(8):
        came = [at for at, _ in History(seed=seed).views([second, *others, first])]
        assert came.index(6) < came.index(0)
    assert answered_before([second, others[0]], [first]) == [others[0]]
    assert answered_before([first], [second]) == [first]
    # Its own answer is found out by its content, under whatever name.
    assert answered_before([replace(first, workload="other", id="copy")], [first]) == []


@pytest.mark.parametrize("running", [1, 2, 5])
def test_a_request_knows_those_that_have_ended_but_none_that_is_held_back(running):
    asked = [request([at + 1], [100 * at + step for step in range(1, 6)]) for at in range(9)]
    before = [request([9], [7_000 + step for step in range(5)], "before")]
    kept = np.array([True, True, False] * 3)
    came: list[int] = []
    for number, known in History(tuple(before), 3, running, known=kept).views(asked):
        ended = [at for at in came[: max(0, len(came) - running + 1)] if kept[at]]
        expected = [*before, *(asked[at] for at in ended)]
        assert outputs(known) == [each.output_tokens.tolist() for each in expected]
        came.append(number)
    assert sorted(came) == list(range(9)) != came


@pytest.mark.parametrize("spec", ["fixed:memory:4:2", "hybrid-memory:3:6:2:2:3"])
def test_a_rule_copies_what_a_plain_search_finds(spec):
    asked = requests_of(8, 10, alphabet=4, output_tokens=(8, 24))
    others = requests_of(9, 10, alphabet=4, output_tokens=(8, 24))
    policy = parse_contender(spec)
    recording = build_recording(asked, NEURAL_CAP, History(tuple(others), 0, 10**6))
    paths = walk_rule(recording, policy.rule, 48)
    answers = [each.output_tokens.tolist() for each in answered_before(others, asked)]
    from_answers = 0
    for number, each in enumerate(asked):
        prompt, output = each.prompt_tokens.tolist(), each.output_tokens.tolist()
        own = match_positions(prompt, output)
        position = 1
        for step in paths.steps[paths.start[number] : paths.start[number + 1]]:
            length, start = int(own.length[position]), int(own.start[position])
            text = prompt + output
            copied = text[start : len(prompt) + position] if length else []
            hit = plain_search(answers, text[: len(prompt) + position])
            if hit is not None and is_better(length, hit[0], *hit[2:4]):
                length, copied = hit[0], hit[1]
                from_answers += 1
            if length >= policy.rule.min_match:
                copied = copied[: policy.rule.ngram_len]
                right = common(copied, output[position:])
                assert (step["copied"], step["accepted"]) == (len(copied), right)
            else:
                assert step["copied"] == 0
            position += int(step["emitted"])
    assert from_answers > 5


def test_a_report_says_what_was_known_and_who_leads_over_suffix_decoding():
    asked = tuple(requests_of(3, 8, alphabet=3, output_tokens=(16, 30)))
    chosen = Selection(asked, NEURAL_CAP, ("here",), None, None, False)
    options = Options(concurrency=(1, 2), orders=1, resamples=3, engine="sync", jobs=1)
    warm = requests_of(4, 5, alphabet=3, output_tokens=(16, 30))
    specs = ("fixed:memory:4:2", *(() if why_not_here() else ("suffix:1", "suffix:4")))
    named = [parse_contender(spec) for spec in specs]
    report = evaluate(chosen, named, H100_LLAMA_3_1_8B, options, warm=[*warm, asked[0]])
    assert report["warm"] == len(answered_before(warm, asked)) > 0
    left_out = len(warm) + 1 - report["warm"]
    assert any(f"({left_out} more given are evaluated" in note for note in report["notes"])
    speeds = {
        (row["policy"], row["concurrency"]): row["tokens_per_s"]
        for row in report["rows"]
        if row["workload"] == "all"
    }
    suffixes = {name: speeds[name, 2] for name in specs[1:]}
    best = max(suffixes, key=suffixes.__getitem__, default=None)
    for each in report["headline"]:
        if best and (each["workload"], each["concurrency"]) == ("all", 2):
            lead = speeds[each["policy"], 2] / suffixes[best] - 1
            low, high = each["lift_over_suffix_ci95"]
            assert each["lift_over_suffix"] == pytest.approx(lead)
            assert low <= lead <= high


def test_of_those_that_come_to_a_fresh_server_none_knows_an_answer():
    asked = requests_of(8, 40, alphabet=4, output_tokens=(8, 24))
    plain, mixed = (
        build_recording(asked, NEURAL_CAP, History(seed=3, fresh=share)) for share in (0.0, 0.5)
    )
    none = build_recording(asked, NEURAL_CAP)
    fresh = 0
    for number in range(len(asked)):
        begin, end = plain.columns.offset[number : number + 2]
        found = mixed.arrays.facts[START, begin:end]
        if (found == none.arrays.facts[START, begin:end]).all():
            fresh += 1
        else:
            np.testing.assert_array_equal(found, plain.arrays.facts[START, begin:end])
    assert 10 < fresh < 30
