"""What vLLM gets wrong on this platform is worked around before anything is served."""

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_every_token_is_told_its_rows_value(dtype):
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    from adaspec.vllm.workarounds import fix_expansion

    if not current_platform.is_cpu():
        pytest.skip("the kernel in question serves the CPU alone")
    fix_expansion()
    fix_expansion()  # a second engine in the same process
    found = rejection_sampler.expand_batch_to_tokens(
        torch.tensor([0, 2, 3], dtype=dtype),
        torch.tensor([2, 2, 5], dtype=torch.int32),
        5,
        replace_from=0,
        replace_to=1,
    )
    assert found.tolist() == [1, 1, 3, 3, 3]
    assert found.dtype == dtype


def test_a_step_that_verifies_nothing_keeps_its_engine_where_a_row_samples_by_top_k(
    engines, prompts
):
    from vllm import SamplingParams

    engine = engines({"method": "adaspec", "policy": "none"})
    params = SamplingParams(temperature=0.8, top_k=5, max_tokens=6, ignore_eos=True)
    assert [len(one[0]) for one in engine.outputs(prompts[:3], params)] == [6] * 3


def test_top_k_still_holds_where_drafts_are_verified(engines, prompts, truth):
    from vllm import SamplingParams

    expected = truth(tokens=24, asked=prompts[:4])
    engine = engines({"method": "adaspec", "policy": "fixed:ngram:8:1"})
    params = SamplingParams(temperature=0.8, top_k=1, max_tokens=24, ignore_eos=True)
    engine.judged.clear()
    assert [one[0] for one in engine.outputs(prompts[:4], params)] == expected
    assert sum(drafted for one in engine.judged.values() for drafted, _ in one) > 0
