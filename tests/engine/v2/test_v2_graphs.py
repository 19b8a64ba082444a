"""What would be captured on a GPU: this machine has none, and nothing is captured here."""

from types import SimpleNamespace

import numpy as np
import pytest
from wandering import Wanderer, check_sound

USUAL = [*range(8, 256, 8), *range(256, 513, 16)]
SIZES = [1, 2, 4, *USUAL, *range(576, 1025, 64)]


def name_sizes(patch, config, requests, sizes):
    """Have a config name these sizes of graphs for so many requests; no memory is set aside."""
    from vllm.platforms import current_platform

    patch.setattr(type(current_platform), "get_global_graph_pool", lambda *_: None)
    patch.setattr(config.scheduler_config, "max_num_seqs", requests)
    patch.setattr(config.compilation_config, "cudagraph_capture_sizes", sizes)
    patch.setattr(config.compilation_config, "max_cudagraph_capture_size", sizes[-1])


def test_a_head_is_captured_for_the_forwards_that_the_policy_runs(served, monkeypatch):
    """vLLM by itself captures the longest draft alone, and a shorter one would run all of it."""
    engine = served("eagle3")
    runner, speculator = engine.runner, engine.runner.speculator
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    captured = []
    monkeypatch.setattr(
        CudaGraphManager, "capture", lambda self, *_: captured.append(self._capture_descs)
    )
    name_sizes(monkeypatch, runner.vllm_config, 8, [1, 2, 8])
    for name in ("prefill_cudagraph_manager", "decode_cudagraph_manager"):
        monkeypatch.setattr(speculator, name, getattr(speculator, name))
    monkeypatch.setattr(speculator, "supports_decode_metadata_update", True)
    table = np.array([[1, 3], [8, 1]], np.float64)
    host = speculator.adaspec_session.decider
    monkeypatch.setattr(host, "state", host.state._replace(forwards_by_load=table))
    monkeypatch.setattr(host, "_most_passes", 3)
    speculator.init_cudagraph_manager(CUDAGraphMode.FULL_DECODE_ONLY)
    manager = speculator.decode_cudagraph_manager
    plain = {each.num_tokens for each in manager._capture_descs[CUDAGraphMode.FULL]}
    assert plain == {1, 2, 8}
    manager.capture(*[None] * 6, specialize_spec_tokens=False)
    found = captured[-1][CUDAGraphMode.FULL]
    assert {(each.num_tokens, each.num_speculative_tokens) for each in found} == {
        (tokens, forwards) for tokens in plain for forwards in (2, 3)
    }
    manager.graphs, manager._graphs_captured = dict.fromkeys(found), True
    dispatched = manager.dispatch(2, 2, 1, 0)
    for forwards, mode in ((2, CUDAGraphMode.FULL), (5, CUDAGraphMode.NONE)):
        described = manager.specialize_spec_tokens(dispatched, forwards)
        assert described.cg_mode == mode
        assert described.num_speculative_tokens == forwards


STEPS = [
    # rows, tokens, longest row, whether a prompt is read -> the head's graph
    (1, 4, 4, False, "FULL"),
    (1, 17, 17, False, "FULL"),
    (8, 48, 17, False, "FULL"),
    (8, 48, 20, True, "PIECEWISE"),
    (128, 256, 9, False, "FULL"),
    (128, 700, 17, False, "FULL"),
    (128, 700, 512, True, "PIECEWISE"),
    (128, 1100, 17, False, "NONE"),
]


def test_a_head_runs_in_full_graphs_whatever_the_lengths_of_drafts(served, monkeypatch):
    """As vLLM's target does; a head's own manager takes full graphs for drafts of one length."""
    from vllm.config.compilation import CUDAGraphMode

    from adaspec.vllm.v2.graphs import take_any_length, tell_longest_row

    runner = served("eagle3").runner
    config = runner.vllm_config
    name_sizes(monkeypatch, config, 128, SIZES)
    speculator = SimpleNamespace(vllm_config=config, device=runner.device, num_speculative_steps=16)
    take_any_length(speculator, CUDAGraphMode.FULL_AND_PIECEWISE)
    manager = speculator.prefill_cudagraph_manager
    manager._graphs_captured = True
    found = []
    for rows, tokens, longest, reads, _ in STEPS:
        # Where the last piece of a prompt is one token, the target runs in no full graph, either.
        batch = SimpleNamespace(
            has_prefill=reads,
            decode_graph_eligible=True,
            num_scheduled_tokens=np.array([longest, 1]),
        )
        tell_longest_row(speculator, batch)
        uniform = longest if tokens == rows * longest and not reads else None
        mode = manager.dispatch(rows, tokens, uniform, 0).cg_mode.name
        found.append((rows, tokens, longest, reads, mode))
    assert found == STEPS


@pytest.mark.parametrize("runs", ["target", "head", "head of one pass"])
def test_steps_whose_drafts_are_not_trimmed_stay_in_full_graphs(served, monkeypatch, runs):
    """Which were captured for the longest draft alone: not for a step without any, either."""
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager
    from vllm.v1.worker.gpu.spec_decode.dflash.cudagraph import DFlashCudaGraphManager
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import (
        SpeculatorCudaGraphManager,
    )

    from adaspec.vllm.v2.graphs import find_each_length

    runner = served("eagle3", trims=False).runner
    config = runner.vllm_config
    longest = config.num_speculative_tokens
    name_sizes(monkeypatch, config, 64, SIZES)
    kind, mode = {
        "target": (ModelCudaGraphManager, CUDAGraphMode.FULL_AND_PIECEWISE),
        "head": (SpeculatorCudaGraphManager, CUDAGraphMode.FULL_AND_PIECEWISE),
        "head of one pass": (DFlashCudaGraphManager, CUDAGraphMode.FULL_DECODE_ONLY),
    }[runs]
    manager = kind(config, runner.device, mode, longest + 1)
    find_each_length(manager)
    manager._graphs_captured = True
    lengths = runner.adaspec_session.decider._lengths
    assert lengths[0] == 0
    assert lengths[-1] == longest
    for length in lengths:
        for rows in (1, 3, 8, 60):
            dispatched = manager.dispatch(rows, rows * (1 + length), 1 + length, 0)
            assert dispatched.cg_mode == CUDAGraphMode.FULL, (length, rows)


@pytest.mark.parametrize(
    ("sizes", "requests", "batched", "added"),
    [
        (USUAL, 128, 8192, [576, 640, 704, 768, 832, 896, 960, 1024]),
        (USUAL, 36, 8192, [576, 640]),
        (USUAL, 30, 8192, []),
        (USUAL, 256, 700, [576, 640]),
        ([*USUAL, 1024], 256, 8192, []),
        ([], 256, 8192, []),  # no graphs at all
    ],
)
def test_graphs_are_captured_up_to_what_all_drafts_can_take(sizes, requests, batched, added):
    from adaspec.vllm.v2.graphs import add_coarse_sizes

    compilation = SimpleNamespace(
        cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=max(sizes, default=0)
    )
    config = SimpleNamespace(
        compilation_config=compilation,
        scheduler_config=SimpleNamespace(max_num_seqs=requests, max_num_batched_tokens=batched),
        speculative_config=SimpleNamespace(num_speculative_tokens=16),
    )
    add_coarse_sizes(config)
    assert compilation.cudagraph_capture_sizes == [*sizes, *added]
    assert compilation.max_cudagraph_capture_size == max([*sizes, *added], default=0)


def test_drafts_keep_a_step_in_its_graph_if_it_would_be_in_one(served, prompts, truth, monkeypatch):
    """On a GPU, a step of more tokens than the largest graph takes half as much again."""
    engine = served("eagle3")
    manager, largest = engine.runner.adaptive_verification, 24
    assert manager.adaspec_largest_graph is None
    monkeypatch.setattr(manager, "adaspec_largest_graph", largest)
    steps, count = [], manager.get_num_tokens

    def get_num_tokens(tokens, drafts):
        scheduled = sum(tokens.values())
        without = scheduled - sum(len(drafts.get(name, ())) for name in tokens)
        steps.append((without, scheduled, count(tokens, drafts)))
        return steps[-1][-1]

    monkeypatch.setattr(manager, "get_num_tokens", get_num_tokens)
    wanderer = Wanderer(engine)
    assert engine.greedy(prompts[:4], 12) == truth(12)[:4]
    check_sound(wanderer.session)
    inside = [verified for without, _, verified in steps if without <= largest]
    assert max(inside) == largest
    assert any(without <= largest < scheduled for without, scheduled, _ in steps)


def test_the_largest_graph_is_that_of_vllms_config():
    from vllm.config.compilation import CUDAGraphMode

    from adaspec.vllm.v2.trimming import largest_graph

    def found(mode, sizes):
        return largest_graph(SimpleNamespace(cudagraph_mode=mode, cudagraph_capture_sizes=sizes))

    assert found(CUDAGraphMode.FULL_AND_PIECEWISE, [1, 2, 512]) == 512
    assert found(CUDAGraphMode.NONE, [1, 2, 512]) is None
    assert found(CUDAGraphMode.FULL_DECODE_ONLY, [1, 2, 512]) is None
    assert found(CUDAGraphMode.FULL, []) is None
