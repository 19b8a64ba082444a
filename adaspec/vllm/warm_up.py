"""Runs a session before anything is served, so that no request waits for a compiler."""

from __future__ import annotations

import numpy as np

from adaspec.vllm.batch import EngineBatch, common_prefix_len
from adaspec.vllm.session import Session

_TEXT = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3]
_STEPS = 3


def warm_up(session: Session) -> None:
    """Run a short, repetitive request through a session that is thrown away afterwards.

    Every stage runs before anything is served, so that no request waits for a compiler.
    """
    session.counts_slow_decisions = False
    state = object()
    tokens = np.array([_TEXT + [4, 1, 2, 3] * (_STEPS + 1) * 8], np.int32)
    known_tokens = len(_TEXT)
    sampled, proposed = [int(tokens[0, known_tokens])], list[int]()
    for _ in range(_STEPS):
        batch = EngineBatch(
            requests=["warm-up"],
            states=[state],
            tokens=tokens,
            prompt_tokens=np.array([len(_TEXT)], np.int32),
            known=np.array([known_tokens], np.int32),
            sampled=[sampled],
            verified={"warm-up": proposed},
            room=np.full(1, session.setup.cap, np.int32),
        )
        session.begin(batch, {"warm-up": state})
        known_tokens += len(sampled)
        for count in range(session.forwards()):
            drafted = np.array([tokens[0, known_tokens + count]], np.int32)
            if not session.take(drafted, np.array([[-0.1, 2.0, 0.3]], np.float32)):
                break
        proposed = session.finish()[0]
        expected_tokens = tokens[0, known_tokens : known_tokens + len(proposed) + 1].tolist()
        sampled = expected_tokens[: common_prefix_len(proposed, expected_tokens) + 1]
    empty = np.zeros(0, np.int32)
    session.begin(EngineBatch([], [], tokens[:0], empty, empty, [], {}), {})
