"""Counts what happens in a session, for whoever shows the figures."""

from __future__ import annotations

import numpy as np

from adaspec.policy.protocol import Ints
from adaspec.vllm.counters import DRAFTED, LENGTHS, SHORT, STAGES, TIMES_S, Counters
from adaspec.vllm.observer import Came, Fault, Proposed, Silent
from adaspec.vllm.transcript import source_of


class Tally(Silent):
    """Turns what an observer is told into figures."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._last: Proposed | None = None

    def proposed(self, proposed: Proposed) -> None:
        """Decisions, lengths, and the time that they took."""
        counters = self._counters
        self._last = proposed
        counters.add("steps")
        neural, ngram = proposed.neural_len, proposed.ngram_len
        for figure, count in _decisions(proposed):
            counters.add(figure, count)
        lengths = neural + ngram
        places, counts = np.unique(np.searchsorted(LENGTHS, lengths), return_counts=True)
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            counters.add(_LENGTH[place], count)
        counters.add("length_sum", int(lengths.sum()))
        counters.add(_TIME[int(np.searchsorted(TIMES_S, proposed.decision_s))])
        counters.add("time_sum", proposed.decision_s)

    def came(self, came: Came) -> None:
        """What was verified and accepted, and what had been expected of it."""
        counters, last = self._counters, self._last
        counters.add("modelled_s", came.step_s)
        if came.took_s is not None:
            kind = _drafted(came)
            counters.add(f"clocked/{kind}")
            counters.add(f"clocked_s/{kind}", came.took_s)
            counters.add(f"clocked_modelled_s/{kind}", came.step_s)
        expected = None
        if last is not None and last.step == came.step:
            expected = last.expected
        for row in np.flatnonzero(came.known & (came.drafted > 0)).tolist():
            drafted, neural = int(came.drafted[row]), int(came.neural_drafted[row])
            accepted = int(came.accepted[row])
            source = source_of(neural, drafted - neural)
            counters.add(f"drafted/{source}", drafted)
            counters.add(f"accepted/{source}", accepted)
            # Where the scheduler cut a draft, what was expected of the whole says nothing.
            if expected is not None and last is not None and _whole(last, came, row):
                counters.add(f"expected/{source}", float(expected[row]))
                counters.add(f"realised/{source}", min(accepted, neural) if neural else accepted)

    def forwards(self, step: int, drafting: int, keep_alive: int, rows: int) -> None:
        """Forwards of the drafter."""
        self._counters.add("forwards/draft", drafting)
        self._counters.add("forwards/keep_alive", keep_alive)

    def dropped(self, requests: list[str]) -> None:
        """Drafts that were not verified as proposed."""
        self._counters.add("unverified", len(requests))

    def fault(self, fault: Fault) -> None:
        """A fault, and whether it was one too many."""
        self._counters.add("decisions/none/fault", fault.rows)
        stage = fault.stage if fault.stage in STAGES else "other"
        self._counters.add(f"faults/{stage}")
        self._counters.put("switched_off", float(fault.switched_off))


_LENGTH = [f"length/{bound}" for bound in (*LENGTHS, "inf")]
_TIME = [f"time/{bound}" for bound in (*TIMES_S, "inf")]


def _decisions(proposed: Proposed) -> list[tuple[str, int]]:
    """How many decisions of each kind the step held."""
    neural, ngram = proposed.neural_len > 0, proposed.ngram_len > 0
    nothing = ~neural & ~ngram & ~proposed.recorded
    barred = np.zeros_like(nothing) if proposed.barred is None else proposed.barred & nothing
    nothing &= ~barred
    shown = np.where(proposed.batch.holds_neural, proposed.shown, 0)
    wanted = np.asarray(proposed.proposal.ngram_len) > 0
    trimmed = proposed.neural_len < shown
    kinds = {
        ("none", "recorded"): proposed.recorded,
        ("none", "min_tokens"): barred,
        ("none", "nothing_to_copy"): nothing & wanted,
        ("none", "policy"): nothing & ~wanted,
        ("ngram", "alone"): ngram & ~neural & (shown == 0),
        ("ngram", "switched"): ngram & ~neural & (shown > 0),
        ("neural", "whole"): neural & ~ngram & ~trimmed,
        ("neural", "trimmed"): neural & ~ngram & trimmed,
        ("splice", "whole"): neural & ngram & ~trimmed,
        ("splice", "trimmed"): neural & ngram & trimmed,
    }
    return [
        (f"decisions/{source}/{reason}", int(held.sum()))
        for (source, reason), held in kinds.items()
    ]


def _drafted(came: Came) -> str:
    """Which of `DRAFTED` a step is."""
    tokens = int(came.drafted.sum())
    return DRAFTED[(tokens > 0) + (tokens > SHORT * int(came.known.sum()))]


def _whole(last: Proposed, came: Came, row: int) -> bool:
    lengths: Ints = last.neural_len + last.ngram_len
    return bool(came.drafted[row] == lengths[row])
