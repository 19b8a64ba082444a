"""What an accelerator would compile while requests are served: this machine compiles nothing."""

import inspect
from functools import cache

import pytest
from wandering import Wanderer, check_sound


def compilations(patch):
    """What Triton would compile for an H100 of the kernels that run from here on, by its own
    binder; a set that grows."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import KernelParam, create_function_from_signature

    found, run = set(), InterpretedFunction.run
    backend = CUDABackend(GPUTarget("cuda", 90, 32))

    @cache
    def binder_of(kernel):
        signature = inspect.signature(kernel.fn)
        exempt = [
            kernel.kwargs.get(key) or ()
            for key in ("do_not_specialize", "do_not_specialize_on_alignment")
        ]
        parameters = [
            KernelParam(at, each, *(at in names or each.name in names for names in exempt))
            for at, each in enumerate(signature.parameters.values())
        ]
        return create_function_from_signature(signature, parameters, backend)

    def note(kernel, *args, grid, warmup, **kwargs):
        _, specialization, options = binder_of(kernel)(*args, **kwargs)
        found.add((kernel.fn.__module__, kernel.fn.__name__, f"{specialization} {options}"))
        return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)

    patch.setattr(InterpretedFunction, "run", note)
    return found


# make test has our kernels alone: tests/unit/kernels/test_kernel_launches.py.
@pytest.mark.thorough
def test_requests_wait_for_no_compilation(served, prompts, truth, monkeypatch):
    """Neither of our kernels nor of vLLM's, whatever is decided of how many rows."""
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification
    from vllm.v1.worker.gpu.warmup import warmup_kernels

    expected, alone = truth(10), truth(6)
    monkeypatch.setattr("adaspec.vllm.session.drafting.KERNELS_ON_CPU", True)
    # What torch compiles of V2, beside the models: anew for one row, and for a budget of one.
    monkeypatch.setattr(adaptive_verification, "_assign_draft_token_budget_compiled", None)
    monkeypatch.setattr("torch.accelerator.synchronize", lambda: None)
    compiled = compilations(monkeypatch)
    engine = served("eagle3", max_num_seqs=6)
    runner = engine.runner
    # As vLLM does where there is an accelerator.
    runner._dummy_run(24)
    warmup_kernels(runner, runner.execute_model, runner.sample_tokens)
    wanderer = Wanderer(engine)
    assert {"read", "trim", "scan", "pack"} <= {name for _, name, _ in compiled}
    before = set(compiled)
    assert engine.greedy(prompts[:4], 10) == expected[:4]
    assert engine.greedy(prompts[:1], 6) == alone[:1]
    check_sound(wanderer.session)
    assert sum(wanderer.taken.values()) > 0
    assert compiled == before
