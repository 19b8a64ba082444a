"""A server that is told to end leaves what it has answered and recorded, as vLLM is by default."""

import numpy as np
import pytest
from live_server import PATIENCE_S, Server, wait_until

from adaspec.trace.reader import TraceReader


def recorded_in(folder):
    """The requests of the traces in a folder, by engine's id; an open one may hold nothing yet."""
    begun = [each.parent for each in sorted(folder.glob("*-*/manifest.json"))]
    readers = [TraceReader(each) for each in begun]
    return {key for reader in readers for key, _ in reader.request_keys()}


@pytest.mark.thorough
def test_a_stop_costs_no_row_and_no_answer(models, prompts, tmp_path):
    config = {
        "method": "adaspec",
        "model": str(models / "eagle"),
        "policy": "fixed:ngram:8:2",
        "trace_dir": str(tmp_path / "traces"),
        "record_fraction": 0.9,
        "ring_tokens": 4096,
        "ring_file": str(tmp_path / "ring"),
    }
    expected = []

    def ask(some):
        choices = server.answer(some, 24, return_token_ids=True)["choices"]
        expected.extend(each["token_ids"] for each in choices)

    with Server(models, tmp_path, config) as server:
        ask(prompts[:6])
        # A kill would not cost them either, although no step follows.
        wait_until(lambda: recorded_in(tmp_path / "traces"))
        ask(prompts[6:])
        server._process.terminate()
        server._process.wait(PATIENCE_S)
    said = server.log.read_text()
    assert "force killing" not in said
    (trace,) = map(TraceReader, (tmp_path / "traces").iterdir())
    assert trace.warnings == []
    rows = {tuple(each.prompt_tokens.tolist()): each for each in trace.requests()}
    assert rows
    for prompt, answer in zip(prompts, expected, strict=True):
        if tuple(prompt) in rows:
            assert rows[tuple(prompt)].output_tokens.tolist() == answer
    with np.load(tmp_path / "ring") as file:
        tokens = file["tokens"]
    kept = [part[part >= 0].tolist() for part in np.split(tokens, np.flatnonzero(tokens < 0))]
    kept = [answer for answer in kept if answer]
    assert len(kept) == len(prompts)
    for answer in kept:  # what the last step of a request emits is not kept
        assert answer in [whole[: len(answer)] for whole in expected]
        assert len(answer) > 12
