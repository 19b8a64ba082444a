import urllib.error
import urllib.request

import numpy as np
import pytest
from live_server import PATIENCE_S, Server, wait_until
from wandering import written_policy

from adaspec.trace.reader import TraceReader

DETAILED = {"per_request_spec_decode_metrics": "detailed"}


@pytest.fixture(scope="module")
def expected(models, truth):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(models / "target").batch_decode(truth())


@pytest.fixture(scope="module")
def served(models, expected, tmp_path_factory):
    """A server with a policy that expects something; its folder has a mode file."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "mode").write_text("serve")
    config = {
        "method": "adaspec",
        "model": str(models / "eagle"),
        "policy": written_policy(folder / "policy"),
        "mode_file": str(folder / "mode"),
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
    """The texts; drafted and accepted tokens of all requests together."""
    texts, judged = [], []
    for prompt in prompts:
        answer = server.answer([prompt], 48)
        texts.append(answer["choices"][0]["text"])
        said = answer["metrics"]["speculative_decoding"] or {}
        columns = (said.get(f"per_step_{name}", []) for name in ("drafted", "accepted"))
        judged += zip(*columns, strict=True)
    return texts, np.sum(judged, axis=0).tolist()


def test_metrics_of_a_server_equal_its_responses(served, prompts, expected):
    server, folder = served
    texts, (drafted, accepted) = answers(server, prompts)
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
    assert total(shown, "policy_info", policy=str(folder / "policy")) == 1


def ask(server, prompt, **xargs):
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
    for wrong in ({"adaspec": "of"}, {"adaspec_cap": 1}):
        status, said = ask(server, prompts[0], **wrong)
        assert status == 400, said
        assert next(iter(wrong)) in said
    assert ask(server, prompts[3]) == (200, expected[3])
    assert total(server.metrics(), "faults_total") == 0


def switch(server, path, mode, prompt):
    """Write a mode into the file, and ask until the server shows it, and no other."""
    path.write_text(mode)

    def is_shown():
        ask(server, prompt)
        shown = server.metrics()
        return total(shown, "mode", mode=mode) == total(shown, "mode") == 1

    wait_until(is_shown)


def test_the_mode_file_is_followed_and_shown(served, prompts, expected):
    server, folder = served
    for mode in ("off", "serve"):
        switch(server, folder / "mode", mode, prompts[5])
        before = verified(server)
        assert ask(server, prompts[4]) == (200, expected[4])
        assert (verified(server) > before) == (mode == "serve")


@pytest.mark.thorough
def test_figures_of_two_replicas_behind_two_api_servers_add_up(models, prompts, expected, tmp_path):
    config = {"method": "adaspec", "model": str(models / "eagle")}
    two = {"data_parallel_size": 2, "api_server_count": 2}
    with Server(models, tmp_path, config, **DETAILED, **two) as server:
        texts, (drafted, accepted) = answers(server, prompts)
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
            server.answer(prompts[prompt : prompt + 4], 48)
    parts = sorted(folder.iterdir())
    assert [part.name for part in parts] == ["replica-0", "replica-1"]
    rows = [len(list(TraceReader(part).requests())) for part in parts]
    assert min(rows) > 0
    assert sum(rows) == 2 * len(prompts)


def recorded_in(folder):
    """The requests of the traces in a folder, by engine's id; an open one may hold nothing yet."""
    begun = [each.parent for each in sorted(folder.glob("*-*/manifest.json"))]
    readers = [TraceReader(each) for each in begun]
    return {key for reader in readers for key, _ in reader.request_keys()}


@pytest.mark.thorough
def test_a_stop_costs_no_row_and_no_answer(models, prompts, tmp_path):
    """As vLLM is stopped by default."""
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
