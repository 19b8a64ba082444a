"""What a running engine writes down is what happened in it."""

import stat

import numpy as np
import pytest
from test_accepts import Ledger, judged

from adaspec.trace.reader import TraceReader


def observer_of(engine, kind):
    from adaspec.vllm.session import Session

    session: Session = engine.session
    return next(each for each in session.observers._observers if type(each).__name__ == kind)


def finished(engine):
    """Ends the recorder's work; whoever left is noticed in the next step."""
    engine.greedy([[5, 6, 7]], 1)
    observer_of(engine, "Recorder").close()


def recorded(engines, folder, head, cap=8, **more):
    config = {"method": "adaspec", "mode": "record", "trace_dir": str(folder), **more}
    if head:
        config |= {"model": head, "num_speculative_tokens": cap}
    return engines(config)


def requests_in(folder, outputs):
    """The recorded requests in the order of the outputs, found by their engine's numbers."""
    found = {int(each.id.split("-")[0]): each for each in TraceReader(folder).requests()}
    return [found[at] for at in sorted(found)[: len(outputs)]]


@pytest.mark.parametrize(
    "head",
    ["eagle", *(pytest.param(head, marks=pytest.mark.thorough) for head in ("eagle3", "draft"))],
)
def test_a_dense_trace_predicts_the_live_steps_of_fixed_neural_8(engines, prompts, tmp_path, head):
    engine = recorded(engines, tmp_path / "dense", head)
    outputs = engine.greedy(prompts, 48)
    finished(engine)
    requests = requests_in(tmp_path / "dense", outputs)
    assert [each.output_tokens.tolist() for each in requests] == outputs
    assert [each.prompt_tokens.tolist() for each in requests] == prompts
    live = engines(
        {
            "method": "adaspec",
            "model": head,
            "policy": "fixed:neural:8",
            "num_speculative_tokens": 8,
        }
    )
    outputs_live, steps = judged(live, prompts)
    assert outputs_live == outputs
    right, wrong = 0, []
    for request, one in zip(requests, steps, strict=True):
        position, length = 1, len(request.output_tokens)
        for drafted, accepted in one:
            if position >= length:
                break
            assert drafted == min(8, length - 1 - position)
            said = min(int(request.neural_accepted[position]), drafted)
            if said == accepted:
                right += 1
            else:
                wrong.append((request.id, position, said, accepted))
            position += accepted + 1
    share = right / (right + len(wrong))
    print(f"{head}: {right} of {right + len(wrong)} live steps predicted, misses {wrong}")
    assert right > 100
    assert share >= 0.96


@pytest.mark.thorough
def test_a_dense_trace_holds_confidences_and_is_the_owners_alone(engines, prompts, tmp_path):
    folder = tmp_path / "dense"
    engine = recorded(engines, folder, "eagle", sampling={"temperature": 0})
    engine.greedy(prompts, 24)
    finished(engine)
    reader = TraceReader(folder)
    assert reader.warnings == []
    assert reader.manifest.neural_cap == reader.manifest.draft_cap == 8
    assert reader.manifest.sampling == {"temperature": 0}
    for request in reader.requests():
        sure = request.confidences[1:]
        assert np.isfinite(sure).all()
        assert (sure[..., 0] <= 0).all()
        assert (sure[..., 1:] >= 0).all()
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.thorough
def test_ngram_alone_records_text(engines, prompts, tmp_path):
    engine = recorded(engines, tmp_path / "dense", None)
    outputs = engine.greedy(prompts, 24)
    finished(engine)
    requests = requests_in(tmp_path / "dense", outputs)
    assert [each.output_tokens.tolist() for each in requests] == outputs
    assert requests[0].neural_accepted is None


@pytest.mark.thorough
def test_a_sampled_output_is_recorded_as_it_came(engines, prompts, tmp_path):
    from vllm import SamplingParams

    engine = recorded(engines, tmp_path / "dense", "eagle")
    params = SamplingParams(temperature=0.9, max_tokens=24, ignore_eos=True)
    outputs = [one[0] for one in engine.outputs(prompts, params)]
    finished(engine)
    requests = requests_in(tmp_path / "dense", outputs)
    assert [each.output_tokens.tolist() for each in requests] == outputs


@pytest.mark.thorough
def test_preempted_requests_are_recorded_whole(engines, prompts, tmp_path):
    engine = engines(
        {
            "method": "adaspec",
            "mode": "record",
            "model": "eagle",
            "num_speculative_tokens": 8,
            "trace_dir": str(tmp_path / "dense"),
        },
        num_gpu_blocks_override=28,
        block_size=32,
        enable_prefix_caching=False,
    )
    outputs = engine.greedy(prompts, 96)
    assert engine.preempted > 0
    finished(engine)
    requests = requests_in(tmp_path / "dense", outputs)
    assert [each.output_tokens.tolist() for each in requests] == outputs


def test_a_live_servers_log_holds_every_verified_draft(engines, prompts, truth, tmp_path):
    expected = truth()
    engine = engines(
        {
            "method": "adaspec",
            "model": "eagle",
            "policy": "hybrid-splice:4:20:3:2:5",
            "trace_dir": str(tmp_path),
        }
    )
    ledger = Ledger()
    engine.session.observers.add(ledger)
    outputs, by_vllm = judged(engine, prompts)
    assert outputs == expected
    finished(engine)
    (folder,) = tmp_path.glob("logged-*")
    reader = TraceReader(folder)
    assert reader.warnings == []
    by_request = {}
    for step in reader.steps():
        assert step.step_s > 0
        if step.draft_len:
            by_request.setdefault(int(step.id.split("-")[0]), []).append(
                (step.draft_len, step.accepted)
            )
    assert [by_request[at] for at in sorted(by_request)] == by_vllm
    counters = observer_of(engine, "MetricsObserver").counters
    for what, place in (("drafted_tokens", 0), ("accepted_tokens", 1)):
        counted = sum(counters[f"{what}/{source}"] for source in ("ngram", "neural", "splice"))
        assert counted == sum(step[place] for one in by_vllm for step in one)


@pytest.mark.thorough
def test_shadow_logs_what_would_have_been_accepted(engines, prompts, truth, tmp_path):
    expected = truth()
    engine = engines(
        {
            "method": "adaspec",
            "model": "eagle",
            "mode": "shadow",
            "policy": "fixed:ngram-vllm:6:2:5",
            "trace_dir": str(tmp_path),
        }
    )
    assert engine.greedy(prompts, 48) == expected
    finished(engine)
    (folder,) = tmp_path.glob("logged-*")
    accepted = 0
    for step in TraceReader(folder).steps():
        at = int(step.id.split("-")[0])
        if at >= len(prompts):
            continue
        came = expected[at][step.position : step.position + step.draft_len]
        drafted = step.drafted_tokens.tolist()
        right = 0
        while right < len(came) and came[right] == drafted[right]:
            right += 1
        assert step.accepted == right
        accepted += right
    assert accepted > 0


def test_a_fraction_of_a_live_servers_requests_is_recorded(engines, prompts, truth, tmp_path):
    expected = truth()
    engine = engines(
        {
            "method": "adaspec",
            "model": "eagle",
            "policy": "hybrid-splice:4:20:3:2:5",
            "record_fraction": 0.5,
            "trace_dir": str(tmp_path),
        }
    )
    assert engine.greedy(prompts, 48) == expected
    assert not engine.session.breaker.counts
    finished(engine)
    (dense,), (logged,) = tmp_path.glob("dense-*"), tmp_path.glob("logged-*")
    whole = {each.id: each for each in TraceReader(dense).requests()}
    steps = {each.id for each in TraceReader(logged).steps()}
    assert whole and steps and not set(whole) & steps
    for id, request in whole.items():
        at = int(id.split("-")[0])
        if at < len(prompts):
            assert request.output_tokens.tolist() == expected[at]
            assert (request.drafted_tokens[1:] >= 0).all()
