"""Over HTTP: answers as without speculation, figures that add up, and what clients may say."""

import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from live_server import PATIENCE_S, Server
from wandering import written_policy

from adaspec.trace.reader import TraceReader

DETAILED = {"per_request_spec_decode_metrics": "detailed"}


@pytest.fixture(scope="module")
def expected(models, truth):
    """The texts that every prompt is answered with, without speculation."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(models / "target").batch_decode(truth())


@pytest.fixture(scope="module")
def served(models, expected, tmp_path_factory):
    """A server with a policy that expects something; its folder has a mode file and traces."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "mode").write_text("serve")
    config = {
        "method": "adaspec",
        "model": str(models / "eagle"),
        "policy": written_policy(folder / "policy"),
        "mode_file": str(folder / "mode"),
        "trace_dir": str(folder / "traces"),
    }
    with Server(models, folder, config, **DETAILED) as server:
        yield server, folder


def total(shown, name, **labels):
    """The sum of a figure over all its labels but those named."""
    return sum(
        value
        for (found, *pairs), value in shown.items()
        if found == f"adaspec:{name}" and labels.items() <= dict(pairs).items()
    )


def verified(server):
    return total(server.metrics(), "drafted_tokens_total")


def answers(server, prompts):
    """The texts; drafted and accepted tokens by request and draft, and of all requests together."""
    texts, judged = [], []
    for at, prompt in enumerate(prompts):
        answer = server.answer([prompt], 48, {"X-Request-Id": f"adaspec:chat:{at}:"})
        texts.append(answer["choices"][0]["text"])
        said = answer["metrics"]["speculative_decoding"] or {}
        columns = (said.get(f"per_step_{name}", []) for name in ("drafted", "accepted"))
        judged.append([step for step in zip(*columns, strict=True) if step[0]])
    return texts, judged, np.sum([step for one in judged for step in one], axis=0).tolist()


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


def test_metrics_of_a_server_equal_its_responses_and_its_trace(served, prompts, expected):
    server, folder = served
    texts, judged, (drafted, accepted) = answers(server, prompts)
    assert texts == expected
    assert 0 < accepted < drafted
    assert "adaspec: policy" in server.log.read_text()
    shown = server.metrics()
    assert total(shown, "drafted_tokens_total") == drafted
    assert total(shown, "accepted_tokens_total") == accepted
    assert total(shown, "draft_len_sum") >= drafted
    assert total(shown, "decision_seconds_count") > 0
    assert total(shown, "expected_tokens_total") > 0
    assert total(shown, "drafter_forwards_total", kind="draft") > 0
    assert total(shown, "faults_total") == 0
    assert total(shown, "policy_info", policy=str(folder / "policy"), mode="serve") == 1
    steps = steps_in(folder / "traces", drafted)
    assert {step.workload for step in steps} == {"chat"}
    logged = {str(at): [] for at in range(len(prompts))}
    for step in steps:
        assert step.step_s > 0
        logged[step.id] += [(step.draft_len, step.accepted)] if step.draft_len else []
    assert list(logged.values()) == judged
    for source in ("ngram", "neural", "splice"):
        of_source = [step for step in steps if step.source == source]
        for name, field in (("drafted", "draft_len"), ("accepted", "accepted")):
            counted = total(shown, f"{name}_tokens_total", source=source)
            assert counted == sum(getattr(step, field) for step in of_source)


def ask(server, prompt, **xargs):
    """The status and the text of a request with these extra arguments."""
    try:
        return 200, server.answer(prompt, 48, vllm_xargs=xargs)["choices"][0]["text"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_requests_say_over_http_what_is_drafted_for_them(served, prompts, expected):
    server, _ = served
    assert ask(server, prompts[0]) == (200, expected[0])
    before = verified(server)
    assert before > 0
    assert ask(server, prompts[1], adaspec="off") == (200, expected[1])
    assert verified(server) == before
    assert ask(server, prompts[2], adaspec_cap=1) == (200, expected[2])
    for wrong in ({"adaspec": "of"}, {"adaspec_cap": 1000}, {"adaspec_sauce": "ngram"}):
        status, said = ask(server, prompts[0], **wrong)
        assert status == 400, said
        assert next(iter(wrong)) in said
    assert ask(server, prompts[3]) == (200, expected[3])
    assert total(server.metrics(), "faults_total") == 0


def test_the_mode_file_is_followed_and_shown(served, prompts, expected):
    server, folder = served
    for mode in ("off", "shadow", "serve"):
        (folder / "mode").write_text(mode)
        time.sleep(0.1)
        ask(server, prompts[5])  # the step before still had the mode before
        before = verified(server)
        assert ask(server, prompts[4]) == (200, expected[4])
        assert (verified(server) > before) == (mode == "serve")
        shown = server.metrics()
        assert total(shown, "mode", mode=mode) == total(shown, "mode") == 1


@pytest.mark.thorough
def test_figures_of_two_replicas_behind_two_api_servers_add_up(models, prompts, expected, tmp_path):
    config = {"method": "adaspec", "model": str(models / "eagle")}
    two = {"data_parallel_size": 2, "api_server_count": 2}
    with Server(models, tmp_path, config, **DETAILED, **two) as server:
        texts, _, (drafted, accepted) = answers(server, prompts)
        assert texts == expected
        shown = server.metrics()
        assert total(shown, "policy_info") == 2
        assert total(shown, "drafted_tokens_total") == drafted > 0
        assert total(shown, "accepted_tokens_total") == accepted > 0


@pytest.mark.thorough
def test_two_replicas_record_side_by_side(models, prompts, tmp_path):
    folder = tmp_path / "traces"
    config = {"method": "adaspec", "model": str(models / "eagle"), "mode": "record"}
    config |= {"trace_dir": str(folder), "num_speculative_tokens": 4}
    with Server(models, tmp_path, config, data_parallel_size=2, shutdown_timeout=30) as server:
        for prompt in [*range(0, len(prompts), 4)] * 2:
            server.complete(prompts[prompt : prompt + 4], 48)
    parts = sorted(folder.iterdir())
    assert [part.name for part in parts] == ["replica-0", "replica-1"]
    rows = [len(list(TraceReader(part).requests())) for part in parts]
    assert min(rows) > 0
    assert sum(rows) == 2 * len(prompts)
