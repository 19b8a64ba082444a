"""Splits requests into those that a policy is trained on and those kept back to judge it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

import numpy as np

from adaspec.errors import TrainingError
from adaspec.evaluate.selection import Selection, Wanted, distinct_names, select
from adaspec.trace.identity import dialogue_hashes, prompt_hashes
from adaspec.trace.reader import Paths, TraceReader, open_traces
from adaspec.trace.schema import Request
from adaspec.train.rows import Members

HELD_OUT = 0.3
"""Share of each workload's requests that is kept back to judge the policy."""
MIN_TRAINED, MIN_HELD_OUT = 6, 2
"""Fewest requests of each workload that folds, and intervals, need."""
ENOUGH = 20
"""Requests per workload from which the hash very likely deals enough to both sides."""

TURNS = "turns of a dialogue count as one"
EVERYTHING = Wanted()


@dataclass(frozen=True, slots=True)
class Corpus:
    """Both sides of the split, each a selection of requests."""

    trained: Selection
    held_out: Selection
    tokenizer: str | None
    vocabulary_hash: str | None
    general: bool = False
    """Whether what it teaches is to serve any model: nothing of a vocabulary, a name or a head."""


def gather(paths: Paths, wanted: Wanted = EVERYTHING, general: bool = False) -> Corpus:
    """Read traces, of several models if the corpus is `general`, and split their requests."""
    readers = open_traces(paths)
    selection = read_all(readers, wanted, general)
    is_held_out = np.array(held_out_of(selection.requests), np.bool_)
    held_out = replace(part_of(selection, is_held_out), unpaired=())
    texts = _of_other_dialogues(selection, held_out.requests)
    trained = replace(part_of(selection, ~is_held_out), unpaired=texts)
    _check_enough(selection, trained, held_out)
    if general:
        trained, held_out = (
            replace(each, target=None, drafter=None) for each in (trained, held_out)
        )
        return Corpus(trained, held_out, None, None, general)
    tokenizer = distinct_names(known_of("tokenizer", readers))
    vocabulary_hash = next(iter(vocabularies_of(readers)), None)
    return Corpus(trained, held_out, tokenizer, vocabulary_hash)


def part_of(selection: Selection, members: Members) -> Selection:
    """The marked requests of a selection."""
    return replace(selection, requests=tuple(compress(selection.requests, members)))


def read_all(readers: Sequence[TraceReader], wanted: Wanted, general: bool) -> Selection:
    """The wanted requests of traces, first those that show drafted tokens."""
    if not general:
        check_alike(readers)
    found = select([each.path for each in readers], wanted)
    in_order = sorted(found.requests, key=lambda request: request.drafted_tokens is None)
    return replace(found, requests=tuple(in_order))


def known_of(what: str, readers: Iterable[TraceReader]) -> dict[str, Path]:
    """The sorted values of a manifest field, each with the first trace that has it."""
    values: dict[str, Path] = {}
    for reader in readers:
        value = getattr(reader.manifest, what)
        if value is not None:
            values.setdefault(value, reader.path)
    return dict(sorted(values.items()))


def vocabularies_of(readers: Iterable[TraceReader]) -> dict[str, Path]:
    """The same of vocabularies, but for those that are only known to be as large as another."""
    found = known_of("vocabulary_hash", readers)
    hashed = {each.partition("-")[0] for each in found if "-" in each}
    return {each: path for each, path in found.items() if each not in hashed}


def held_out_of(requests: Sequence[Request]) -> list[bool]:
    """Which requests are kept back, by the content of the first turn of their dialogue alone.

    So no request changes sides as others come or go.
    """
    digests = (
        hashlib.sha256(f"held out: {content}".encode()).digest()
        for content in dialogue_hashes(requests)
    )
    return [int.from_bytes(digest[:8], "big") < HELD_OUT * 2**64 for digest in digests]


def _of_other_dialogues(selection: Selection, judged: Sequence[Request]) -> tuple[Request, ...]:
    """The unpaired requests of a selection without the prompt or dialogue of any that is judged."""
    hashes = prompt_hashes([*judged, *selection.unpaired])
    theirs, others = set(hashes[: len(judged)]), hashes[len(judged) :]
    return tuple(compress(selection.unpaired, (each not in theirs for each in others)))


def dialogues_of(requests: Sequence[Request]) -> dict[str, set[str]]:
    """The distinct dialogues of each workload, by hash; a request in none is one of its own."""
    dialogues: dict[str, set[str]] = {}
    for request, dialogue in zip(requests, dialogue_hashes(requests), strict=True):
        dialogues.setdefault(request.workload, set()).add(dialogue)
    return dict(sorted(dialogues.items()))


def check_alike(readers: Sequence[TraceReader]) -> None:
    """Refuse traces that differ in target, tokenizer or drafter, as their rows cannot be mixed."""
    known = {what: known_of(what, readers) for what in ("target", "tokenizer", "drafter")}
    known["vocabulary"] = vocabularies_of(readers)
    # A tokenizer has many names, so they tell nothing where vocabularies are known.
    if all(reader.manifest.vocabulary_hash for reader in readers):
        del known["tokenizer"]
    for what, values in known.items():
        if len(values) > 1:
            listing = ", ".join(f"'{value}' in {path}" for value, path in values.items())
            raise TrainingError(
                f"the traces differ in their {what} ({listing}): train on one, or add --general"
            )


def _check_enough(selection: Selection, trained: Selection, held_out: Selection) -> None:
    everything, *sides = (dialogues_of(each.requests) for each in (selection, trained, held_out))
    for workload, dialogues in everything.items():
        train, kept = (len(side.get(workload, ())) for side in sides)
        if train < MIN_TRAINED or kept < MIN_HELD_OUT:
            raise TrainingError(
                f"workload '{workload}' has too few requests: {train} are to train on and {kept} "
                f"kept back ({TURNS}), {MIN_TRAINED} and {MIN_HELD_OUT} are needed: give about "
                f"{max(ENOUGH, 2 * len(dialogues))} of it, or leave it out with --exclude-workload"
            )
