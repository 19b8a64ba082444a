"""What a server shows in /metrics is what its responses and its trace say."""

import time

import pytest
from test_server import PATIENCE_S, Server

from adaspec.trace.reader import TraceReader

SOURCES = ("ngram", "neural", "splice")
DETAILED = ("--per-request-spec-decode-metrics", "detailed")
POLICY = "hybrid-splice:4:20:3:2:5"


def total(shown, name, **labels):
    """The sum of a figure over all its labels but those named."""
    return sum(
        value
        for (found, *pairs), value in shown.items()
        if found == f"adaspec:{name}" and labels.items() <= dict(pairs).items()
    )


def steps_in(folder, drafted):
    """The logged steps, once the recorder has seen that nobody runs any more."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        written = list(folder.glob("logged-*"))  # none until something was
        assert len(written) <= 1
        steps = [step for logged in written for step in TraceReader(logged).steps()]
        if sum(step.draft_len for step in steps) >= drafted or time.monotonic() > deadline:
            return steps
        time.sleep(1)


def check_sums(server, prompts, expected, folder, policy=POLICY):
    texts, drafted, accepted = [], 0, 0
    for at, prompt in enumerate(prompts):
        answer = server.answer([prompt], 48, **{"X-Request-Id": f"adaspec:chat:{at}:"})
        texts.append(answer["choices"][0]["text"])
        said = answer["metrics"]["speculative_decoding"]
        drafted += sum(said["per_step_drafted"])
        accepted += sum(said["per_step_accepted"])
    assert texts == expected
    assert 0 < accepted < drafted
    shown = server.metrics()
    assert total(shown, "drafted_tokens_total") == drafted
    assert total(shown, "accepted_tokens_total") == accepted
    decisions = total(shown, "decisions_total")
    assert total(shown, "draft_len_count") == decisions
    assert total(shown, "draft_len_sum") >= drafted
    assert total(shown, "steps_total") == total(shown, "decision_seconds_count") > 0
    assert total(shown, "drafter_forwards_total", kind="draft") > 0
    assert 0 < total(shown, "clocked_steps_total") <= total(shown, "steps_total")
    assert total(shown, "clocked_step_modelled_seconds_total") > 0
    assert total(shown, "clocked_step_seconds_total") > 0
    assert total(shown, "faults_total") == 0
    assert total(shown, "policy_info", policy=policy, mode="serve") == 1
    steps = steps_in(folder, drafted)
    assert {step.workload for step in steps} == {"chat"}
    assert {step.id for step in steps} == {str(at) for at in range(len(prompts))}
    assert sum(step.draft_len for step in steps) == drafted
    assert sum(step.accepted for step in steps) == accepted
    for source in SOURCES:
        of_source = [step for step in steps if step.source == source]
        assert total(shown, "drafted_tokens_total", source=source) == sum(
            step.draft_len for step in of_source
        )
        assert total(shown, "accepted_tokens_total", source=source) == sum(
            step.accepted for step in of_source
        )


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="one"),
        pytest.param(("--api-server-count", "2"), id="two-api-servers", marks=pytest.mark.thorough),
    ],
)
def test_metrics_of_a_server_equal_its_responses_and_its_trace(
    models, truth, prompts, tmp_path, more
):
    from transformers import AutoTokenizer

    expected = AutoTokenizer.from_pretrained(models / "target").batch_decode(truth())
    folder = tmp_path / "traces"
    config = {
        "method": "adaspec",
        "model": str(models / "eagle"),
        "policy": POLICY,
        "trace_dir": str(folder),
    }
    server = Server(models, tmp_path, config, *DETAILED, *more)
    try:
        server.wait()
        check_sums(server, prompts, expected, folder)
    finally:
        server.stop()
