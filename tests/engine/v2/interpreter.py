"""Lets vLLM's model runner V2 run without an accelerator: its kernels in Triton's interpreter.

To be imported before vLLM and Triton. A process that has done so is for V2 alone.
"""

import os
import types

os.environ.update(
    TRITON_INTERPRET="1",
    VLLM_USE_V2_MODEL_RUNNER="1",
    TORCHDYNAMO_DISABLE="1",
    OMP_NUM_THREADS="1",
)

import triton.backends

driver = types.SimpleNamespace(is_active=lambda: True)
triton.backends.backends["cpu"] = types.SimpleNamespace(driver=driver, compiler=None)


def take_any_mask():
    """Let the interpreter take masks of whole numbers, as the compiler does."""
    from triton.runtime.interpreter import InterpreterBuilder

    def taking_any(access, place):
        def masked(self, *args, **named):
            args[place].data = args[place].data.astype(bool)
            return access(self, *args, **named)

        return masked

    for name, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        setattr(InterpreterBuilder, name, taking_any(getattr(InterpreterBuilder, name), place))


def keep_async_scheduling():
    """Have vLLM's CPU platform leave async scheduling as it was asked for."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls, config):
        asked = config.scheduler_config.async_scheduling
        original(cls, config)
        config.scheduler_config.async_scheduling = asked

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def filter_in_torch():
    """Filter by top-k and top-p in torch: the interpreter does not run vLLM's kernel for it."""
    import vllm.v1.sample.ops.topk_topp_sampler as ops

    ops.apply_top_k_top_p_triton = ops.apply_top_k_top_p_pytorch


class Trimming:
    """Whether vLLM takes this machine's attention for one whose drafts can be trimmed on it."""

    possible = True

    @classmethod
    def pretend(cls):
        """Let `possible` say so from here on; CPUs have no captured graphs that it could spoil."""
        import vllm.v1.worker.gpu.model_runner as runner
        import vllm.v1.worker.gpu.spec_decode.adaptive_verification as verification

        unsupported = verification.get_varlen_cudagraph_unsupported_backend
        resolve = runner.resolve_adaptive_cudagraph_mode

        def unsupported_backend(*args, **kwargs):
            return None if cls.possible else unsupported(*args, **kwargs)

        def resolved(mode, **kwargs):
            return mode if cls.possible else resolve(mode, **kwargs)

        verification.get_varlen_cudagraph_unsupported_backend = unsupported_backend
        verification._assign_draft_token_budget_compiled = verification._assign_draft_token_budget
        runner.resolve_adaptive_cudagraph_mode = resolved


def allow_adaptive_verification():
    """Let vLLM verify adaptively without captured graphs, whose times it would measure."""
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification as verification

    manager = verification.AdaptiveVerificationManager
    begin = manager.__init__

    def init(self, req_states, *args, **named):
        begin(self, req_states, *args, **named)
        self.cost_tables = verification.build_cost_tables_from_curves(
            [(1, 1.0), (2, 1.0)],
            [(1, 8.0), (2, 9.0)],
            req_states.max_num_reqs,
            req_states.max_num_batched_tokens,
        )

    manager.__init__ = init
    VllmConfig._validate_adaptive_verification = lambda self: None


take_any_mask()
keep_async_scheduling()
filter_in_torch()
Trimming.pretend()
allow_adaptive_verification()
