"""Requests that are recorded while they are served, by an engine of either runner."""

from dataclasses import replace

from heard import Heard
from msgspec import structs

from adaspec.trace.reader import TraceReader
from adaspec.vllm.metrics import Counters
from adaspec.vllm.tracing import recorder_of


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


def check_a_share(recording, texts):
    """Some requests are recorded whole and propose nothing, while the others are drafted for."""
    rows, drafted = recording.requests(), {True: 0, False: 0}
    seen = {True: set(), False: set()}
    for step in recording.heard["proposed"]:
        for name, is_recorded, length in zip(
            step.requests, step.recorded.tolist(), step.lengths.tolist(), strict=True
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
