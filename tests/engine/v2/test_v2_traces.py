from dataclasses import replace

from heard import Heard
from msgspec import structs
from wandering import CAP, Wanderer, breaking, check_sound, random_policy

from adaspec.trace.reader import TraceReader
from adaspec.vllm.metrics import Counters
from adaspec.vllm.recorder import recorder_of

TOKENS = 32


class Recording:
    """Records what a session does from here on, into a folder of its own below this one."""

    def __init__(self, engine, session, folder):
        self.engine, self.folder, self.heard = engine, folder, Heard(session)
        options = structs.replace(session.serving.options, trace_dir=str(folder))
        counters = Counters(None, {})
        self._recorder = recorder_of(replace(session.serving, options=options), counters)
        session.observers.add(self._recorder)

    def requests(self):
        """The recorded requests, once all have ended; which ends the recording."""
        self.engine.greedy([[5, 6, 7]], 4)  # whoever left is noticed in the next step
        self._recorder.close()
        (folder,) = self.folder.iterdir()
        reader = TraceReader(folder)
        assert reader.warnings == []
        return [each for each in reader.requests() if len(each.prompt_tokens) > 3]


def texts_of(prompts, truth):
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
    lost = breaking(monkeypatch, session.decider, "note", 3)
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    rows = recording.requests()
    assert rows
    for row in rows:
        said = texts_of(prompts, truth)[tuple(row.prompt_tokens.tolist())]
        length = len(row.output_tokens)
        assert row.output_tokens.tolist() == said[:length]
        assert length < TOKENS // 2
    assert session.breaker.counts == {"plan": len(lost)}


def test_some_requests_are_recorded_whole_while_the_others_are_drafted_for(
    served, prompts, truth, tmp_path
):
    engine = served("eagle3")
    session = engine.put(random_policy(2, True), record_fraction=0.5)
    recording = Recording(engine, session, tmp_path)
    for _ in range(2):
        assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    texts = texts_of(prompts, truth)
    rows, drafted = recording.requests(), {True: 0, False: 0}
    seen = {True: set(), False: set()}
    for step in recording.heard["proposed"]:
        for name, is_recorded, length in zip(
            step.requests, step.recorded.tolist(), step.verified.tolist(), strict=True
        ):
            seen[is_recorded].add(name)
            drafted[is_recorded] += length
    assert {row.id for row in rows} <= seen[True]
    assert not seen[True] & seen[False]
    assert rows and seen[False]
    assert drafted[False] > drafted[True] == 0
    for row in rows:
        assert row.output_tokens.tolist() == texts[tuple(row.prompt_tokens.tolist())]
        assert (row.drafted_tokens[1:] >= 0).all()
        assert row.paired
    check_sound(session)
