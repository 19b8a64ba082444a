from itertools import pairwise

import pytest
import torch
from live_engine import sampling


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_every_token_is_told_its_rows_value(dtype):
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    from adaspec.vllm.v1 import fix_rejection_sampler

    if not current_platform.is_cpu():
        pytest.skip("the kernel in question serves the CPU alone")
    fix_rejection_sampler()
    fix_rejection_sampler()  # a second engine in the same process
    found = rejection_sampler.expand_batch_to_tokens(
        torch.tensor([0, 2, 3], dtype=dtype),
        torch.tensor([2, 2, 5], dtype=torch.int32),
        5,
        replace_from=0,
        replace_to=1,
    )
    assert found.tolist() == [1, 1, 3, 3, 3]
    assert found.dtype == dtype


def test_rows_sampled_by_top_k_are_served_and_held_to_it_with_drafts_and_without(
    serve, prompts, truth
):
    engine, _ = serve(None, "none")
    params = sampling(6, temperature=0.8, top_k=5)
    assert [len(one[0]) for one in engine.outputs(prompts[:3], params)] == [6] * 3
    engine, _ = serve(None, "fixed:ngram:8:1")
    params = sampling(24, temperature=0.8, top_k=1)
    assert [one[0] for one in engine.outputs(prompts[:4], params)] == truth(24)[:4]
    assert sum(drafted for one in engine.judged.values() for drafted, _ in one) > 0


def test_each_forward_of_the_drafter_reads_one_more_token_than_the_one_before(
    serve, prompts, monkeypatch
):
    engine, _ = serve("eagle", "fixed:neural:4")
    drafter, lengths = engine.runner.drafter, []
    build = drafter.build_per_group_and_layer_attn_metadata

    def note_lengths(metadata, draft_index=0):
        lengths.append((draft_index, metadata.seq_lens.tolist()))
        return build(metadata, draft_index=draft_index)

    monkeypatch.setattr(drafter, "build_per_group_and_layer_attn_metadata", note_lengths)
    engine.greedy(prompts[:4], 16)
    assert sum(accepted for one in engine.judged.values() for _, accepted in one) > 0
    later = [(before, now) for (_, before), (index, now) in pairwise(lengths) if index > 1]
    assert len(later) > 10
    for before, now in later:
        assert now == [length + 1 for length in before]
