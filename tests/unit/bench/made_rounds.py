"""Prompts, answers and rounds for tests of the engine benchmark."""

from adaspec.bench.engine.client import Answer, Call
from adaspec.bench.engine.rounds import Round


def call(workload, id):
    return Call(workload, str(id), (1, 2), 8)


def answer(sent, arrived, counts=None, id="0"):
    counts = counts or [1] * len(arrived)
    return Answer("w", id, sent, tuple(arrived), tuple(counts), tuple(range(sum(counts))))


PROMPTS = {name: [call(name, at) for at in range(10)] for name in ("a", "b")}


def entry(turn=0, candidate="none"):
    return Round(1, turn, "all", candidate, 6.0, 4.0, (answer(0, [1, 2]),))
