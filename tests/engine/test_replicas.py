"""Several engines behind one address: figures add up, and each writes traces of its own."""

import pytest
from test_metrics import DETAILED, total
from test_server import Server

from adaspec.trace.reader import TraceReader

pytestmark = pytest.mark.thorough

TWO = ("--data-parallel-size", "2")


def answers(server, prompts):
    """What every prompt is answered, and drafted and accepted tokens by the responses."""
    texts, drafted, accepted = [], 0, 0
    for at, prompt in enumerate(prompts):
        answer = server.answer([prompt], 48, **{"X-Request-Id": f"adaspec:chat:{at}:"})
        texts.append(answer["choices"][0]["text"])
        said = answer["metrics"]["speculative_decoding"] or {}
        drafted += sum(said.get("per_step_drafted", []))
        accepted += sum(said.get("per_step_accepted", []))
    return texts, drafted, accepted


@pytest.fixture
def expected(models, truth):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(models / "target").batch_decode(truth())


def test_figures_of_two_replicas_add_up(models, prompts, expected, tmp_path):
    config = {"method": "adaspec", "model": str(models / "eagle")}
    server = Server(models, tmp_path, config, *DETAILED, *TWO)
    try:
        server.wait()
        texts, drafted, accepted = answers(server, prompts)
        assert texts == expected
        shown = server.metrics()
        assert total(shown, "policy_info") == 2
        assert total(shown, "drafted_tokens_total") == drafted > 0
        assert total(shown, "accepted_tokens_total") == accepted > 0
    finally:
        server.stop()


def test_two_replicas_record_side_by_side(models, prompts, expected, tmp_path):
    folder = tmp_path / "traces"
    config = {"method": "adaspec", "model": str(models / "eagle"), "mode": "record"}
    config |= {"trace_dir": str(folder), "num_speculative_tokens": 4}
    server = Server(models, tmp_path, config, *TWO, "--shutdown-timeout", "30")
    try:
        server.wait()
        for _ in range(2):
            for prompt in range(0, len(prompts), 4):
                server.complete(prompts[prompt : prompt + 4], 48)
    finally:
        server.stop()
    parts = sorted(folder.iterdir())
    assert [part.name for part in parts] == ["replica-0", "replica-1"]
    readers = [TraceReader(part) for part in parts]
    rows = [len(list(reader.requests())) for reader in readers]
    assert min(rows) > 0
    assert sum(rows) == 2 * len(prompts)
