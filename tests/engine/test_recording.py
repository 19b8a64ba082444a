import numpy as np
import pytest
from live_engine import sampling
from test_accepts import judged
from test_outputs import CRAMPED

from adaspec.trace.reader import TraceReader


def finished(engine):
    """Ends the recorder's work; whoever left is noticed in the next step."""
    engine.greedy([[5, 6, 7]], 1)
    engine.session.observers.notify("close")


def recording_engine(engines, folder, head, arguments=None, **more):
    config = {"method": "adaspec", "mode": "record", "trace_dir": str(folder), **more}
    if head:
        config |= {"model": head, "num_speculative_tokens": 8}
    return engines(config, **(arguments or {}))


def requests_in(folder, outputs):
    """The recorded requests in the order of the outputs, found by their engine's numbers."""
    found = {int(each.id.split("-")[0]): each for each in TraceReader(folder).requests()}
    return [found[at] for at in sorted(found)[: len(outputs)]]


@pytest.mark.parametrize("head", ["eagle", pytest.param("draft", marks=pytest.mark.thorough)])
def test_a_trace_predicts_the_live_steps_of_fixed_neural_8(
    engines, serve, prompts, truth, tmp_path, head
):
    engine = recording_engine(engines, tmp_path / "trace", head)
    outputs = engine.greedy(prompts, 48)
    assert outputs == truth()
    assert not engine.judged
    finished(engine)
    reader, requests = TraceReader(tmp_path / "trace"), requests_in(tmp_path / "trace", outputs)
    assert reader.warnings == []
    assert reader.manifest.neural_cap == reader.manifest.draft_cap == 8
    for request in requests:
        sure = request.confidences[1:]
        assert np.isfinite(sure).all()
        assert (sure[..., 0] <= 0).all()
        assert (sure[..., 1:] >= 0).all()
    assert [each.output_tokens.tolist() for each in requests] == outputs
    assert [each.prompt_tokens.tolist() for each in requests] == prompts
    outputs_live, steps = judged(serve(head, "fixed:neural:8")[0], prompts)
    assert outputs_live == outputs
    pairs = []
    for request, one in zip(requests, steps, strict=True):
        position, length = 1, len(request.output_tokens)
        for drafted, accepted in one:
            if position >= length:
                break
            assert drafted == min(8, length - 1 - position)
            pairs.append((min(int(request.neural_accepted[position]), drafted), accepted))
            position += accepted + 1
    right = sum(said == accepted for said, accepted in pairs)
    assert right > 100
    assert right >= 0.96 * len(pairs), pairs


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["n-gram alone", "sampled", "preempted"])
def test_what_is_recorded_is_what_came(engines, prompts, tmp_path, what):
    head = None if what == "n-gram alone" else "eagle"
    arguments = CRAMPED if what == "preempted" else {}
    engine = recording_engine(engines, tmp_path / "trace", head, arguments)
    params = sampling(96, temperature=0.9 if what == "sampled" else 0)
    outputs = [one[0] for one in engine.outputs(prompts, params)]
    assert (engine.preempted > 0) == (what == "preempted")
    finished(engine)
    requests = requests_in(tmp_path / "trace", outputs)
    assert [each.output_tokens.tolist() for each in requests] == outputs
    assert (requests[0].neural_accepted is None) == (head is None)
