"""What vLLM gets wrong on this platform is put right before anything is served."""

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_every_token_is_told_its_rows_value(dtype):
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    from adaspec.vllm.compatibility import mend_expansion

    if not current_platform.is_cpu():
        pytest.skip("the kernel in question serves the CPU alone")
    assert mend_expansion() == mend_expansion()
    found = rejection_sampler.expand_batch_to_tokens(
        torch.tensor([0, 2, 3], dtype=dtype),
        torch.tensor([2, 2, 5], dtype=torch.int32),
        5,
        replace_from=0,
        replace_to=1,
    )
    assert found.tolist() == [1, 1, 3, 3, 3]
    assert found.dtype == dtype
