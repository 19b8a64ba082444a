"""Earlier answers in a live engine: they are copied from, change no output, and stay apart."""

import pytest
from copied import copied_tokens
from heard import Heard
from msgspec import structs

POLICY = "fixed:memory:8:2"


@pytest.fixture
def remembering(serve):
    """An engine that remembers nothing yet."""
    return serve(None, POLICY, memory_bytes=1 << 20)[0]


def run(engine, prompts, salts=None):
    """The outputs, how many tokens were copied from earlier answers, and how many accepted."""
    heard = Heard(engine.session)
    return engine.greedy(prompts, salts=salts), *copied_tokens(heard["verified"])


def test_an_answer_under_one_salt_is_never_seen_under_another(remembering, truth, prompts):
    for salt in ("one", "two", "three", "ONE", "one "):
        outputs, copied, _ = run(remembering, prompts[5:6], [salt])
        assert outputs == truth()[5:6]
        assert copied == 0
    _, _, accepted = run(remembering, prompts[5:6], ["one"])
    assert accepted > 10


def test_a_restarted_server_begins_with_what_was_answered(
    remembering, truth, prompts, tmp_path, monkeypatch
):
    from adaspec.vllm.patching import OPTIONS_ATTRIBUTE
    from adaspec.vllm.serving import session_of

    runner = remembering.runner
    options = getattr(runner.vllm_config.speculative_config, OPTIONS_ATTRIBUTE)
    options = structs.replace(
        options, policy=POLICY, memory_bytes=1 << 20, memory_dir=str(tmp_path)
    )
    config, cpu = runner.vllm_config, runner.device
    monkeypatch.setattr(runner, "adaspec_session", session_of(config, options, cpu, None))
    run(remembering, prompts[:3], ["a"] * 3)
    run(remembering, prompts[5:6], ["c"])  # who has ended is told with the next step
    runner.adaspec_session.memory.index.close()
    assert (tmp_path / "answers.jsonl").stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(runner, "adaspec_session", session_of(config, options, cpu, None))
    assert run(remembering, prompts[:1], ["b"])[1] == 0
    outputs, _, accepted = run(remembering, prompts[:3], ["a"] * 3)
    assert outputs == truth()[:3]
    assert accepted > 30
