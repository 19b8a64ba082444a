"""What is counted and written down on V2 is what the engine did."""

from heard import Heard
from recorded import Recording, check_a_share
from wandering import CAP, Wanderer, breaking, check_sound, random_policy

TOKENS = 32


def texts_of(prompts, truth):
    """What is said to each prompt."""
    return {tuple(prompt): one for prompt, one in zip(prompts, truth(TOKENS), strict=True)}


def test_what_is_learned_is_what_was_verified(served, prompts, truth):
    engine = served("eagle3")
    session = Wanderer(engine).session
    heard = Heard(session)
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    judged = [step for one in engine.judged.values() for step in one]
    # vLLM counts what was scheduled, and cuts the last step of a request to its length.
    accepted = sum(accepted for _, accepted in judged)
    assert 0.8 * accepted <= heard.total("accepted") <= accepted + CAP * len(prompts)
    assert heard.total("drafted") <= sum(drafted for drafted, _ in judged)
    check_sound(session)


def test_a_request_that_lost_a_step_is_written_no_further(
    served, prompts, truth, tmp_path, monkeypatch
):
    engine = served("eagle3")
    session = engine.put(random_policy(2, True), record_fraction=1.0)
    recording = Recording(engine, session, tmp_path)
    lost = breaking(monkeypatch, session.host, "note", 3)
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    for row in recording.requests():
        said = texts_of(prompts, truth)[tuple(row.prompt_tokens.tolist())]
        length = len(row.output_tokens)
        assert row.output_tokens.tolist() == said[:length]
        assert length < TOKENS // 2
    assert session.breaker.counts == {"plan": len(lost)}


def test_a_share_of_requests_is_recorded_while_others_are_served(served, prompts, truth, tmp_path):
    engine = served("eagle3")
    session = engine.put(random_policy(2, True), record_fraction=0.5)
    recording = Recording(engine, session, tmp_path)
    for _ in range(2):
        assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    check_a_share(recording, texts_of(prompts, truth))
    check_sound(session)
