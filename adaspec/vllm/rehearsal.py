"""Runs every stage once before anything is served, so that no request waits for a compiler."""

from __future__ import annotations

import logging
from time import perf_counter

import numpy as np

from adaspec.vllm.running import EngineBatch
from adaspec.vllm.session import Session

log = logging.getLogger("vllm.adaspec")

_TEXT = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3]
_STEPS = 3
_WORTH_A_WORD_S = 5.0


def rehearse(session: Session) -> None:
    """Play a short, repetitive request through a session that is thrown away afterwards."""
    session.counts_slow_decisions = False
    began = perf_counter()
    state = object()
    tokens = np.array([_TEXT + [4, 1, 2, 3] * (_STEPS + 1) * 8], np.int32)
    known, sampled = len(_TEXT), [int(tokens[0, len(_TEXT)])]
    verified: list[int] = []
    for _ in range(_STEPS):
        rows = EngineBatch(
            requests=["rehearsal"],
            states=[state],
            tokens=tokens,
            prompt_tokens=np.array([len(_TEXT)], np.int32),
            known=np.array([known], np.int32),
            sampled=[sampled],
            verified={"rehearsal": verified},
        )
        session.begin(rows, {"rehearsal": state})
        known += len(sampled)
        for count in range(session.forwards()):
            said = np.array([tokens[0, known + count]], np.int32)
            if not session.take(said, np.array([[-0.1, 2.0, 0.3]], np.float32)):
                break
        verified = session.finish()[0]
        right = tokens[0, known : known + len(verified) + 1].tolist()
        sampled = right[: _agreed(verified, right) + 1]
    session.begin(
        EngineBatch([], [], tokens[:0], np.zeros(0, np.int32), np.zeros(0, np.int32), [], {}), {}
    )
    took = perf_counter() - began
    if took > _WORTH_A_WORD_S:
        log.info("adaspec: compiled for %.0f s; the next start on this machine need not", took)


def _agreed(tokens: list[int], right: list[int]) -> int:
    count = 0
    while count < len(tokens) and tokens[count] == right[count]:
        count += 1
    return count
