"""The CUDA graphs that the policy's steps run in: what is captured, and up to which size.

vLLM holds a head's first forward in one graph, and all others of a draft in another. It captures
the first for drafts of one length, the second for the longest draft, which it replays whole for a
shorter one. Here drafts differ in length from row to row, and in number from step to step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

FIRST_COARSE, LAST_COARSE, COARSE_STEP = 576, 1024, 64
"""The sizes that are captured beyond vLLM's own, in tokens."""


def add_coarse_sizes(config: Any) -> None:
    """Have an engine capture graphs for steps in which many requests have drafts verified.

    By itself vLLM captures up to 512 tokens. On an H100 a step beyond takes 12 ms longer, twice the
    time of a small one.
    """
    compilation, scheduler = config.compilation_config, config.scheduler_config
    sizes, most_batched = compilation.cudagraph_capture_sizes, scheduler.max_num_batched_tokens
    each = 1 + config.speculative_config.num_speculative_tokens
    most = min(scheduler.max_num_seqs * each + COARSE_STEP - 1, most_batched)
    added = [
        size
        for size in range(FIRST_COARSE, LAST_COARSE + 1, COARSE_STEP)
        if sizes and max(sizes) < size <= most
    ]
    if added:
        compilation.cudagraph_capture_sizes = [*sizes, *added]
        compilation.max_cudagraph_capture_size = added[-1]


def capture_lengths(config: Any, lengths: Sequence[int]) -> None:
    """Have target and head capture full graphs for drafts of each of these lengths, in ascending
    order, where all drafts of a step are of one.

    vLLM captures what its own table of lengths by load asks for, which nothing else reads in a
    worker.
    """
    loads = config.scheduler_config.max_num_seqs
    asked = [*lengths[: loads - 1], lengths[-1]]
    config.speculative_config.num_speculative_tokens_per_batch_size = [
        (load, load, length) for load, length in enumerate(asked, start=1)
    ]


def find_each_length(manager: Any) -> None:
    """Let a manager of graphs find the next one of each length.

    vLLM looks among those of the next number of tokens, which may all be for another length.
    """
    ascending = sorted(
        {each for found in manager._candidates.values() for each in found},
        key=lambda each: each.num_tokens,
    )
    for (tokens, adapters), found in manager._candidates.items():
        nearest: dict[tuple[int, int], Any] = {}
        for each in ascending:
            length = each.uniform_token_count
            if length and each.num_tokens >= tokens and each.num_active_loras == adapters:
                nearest.setdefault((length, each.num_ubatches), each)
        found[:0] = [each for each in nearest.values() if each not in found]


def take_any_length(speculator: Any, cudagraph_mode: Any) -> None:
    """Let the head's first forward run in full graphs where drafts differ in length.

    It reads the tokens that the target has just verified, whose number differs from row to row. As
    the target's, its graphs then hold a number of tokens and a longest row, and no batch that reads
    a prompt.
    """
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import (
        SpeculatorCudaGraphManager,
    )

    class AnyLength(SpeculatorCudaGraphManager):
        """Dispatches by the longest row of the step that `longest_row` was set for."""

        longest_row: int | None = None

        def dispatch(self, *args: Any, **named: Any) -> Any:
            return super().dispatch(*args, **(named | {"max_query_len": self.longest_row}))

    speculator.prefill_cudagraph_manager = AnyLength(
        speculator.vllm_config,
        speculator.device,
        cudagraph_mode,
        speculator.num_speculative_steps + 1,
        varlen_decode=True,
    )


def tell_longest_row(speculator: Any, input_batch: Any) -> None:
    """Tell the manager that `take_any_length` made of the batch that comes next."""
    manager = getattr(speculator, "prefill_cudagraph_manager", None)
    if manager is not None and hasattr(manager, "longest_row"):
        # As the target: by vLLM's `decode_graph_eligible` a prompt's last token would do.
        decodes = not input_batch.has_prefill
        manager.longest_row = int(input_batch.num_scheduled_tokens.max()) if decodes else None


def capture_forwards(speculator: Any, counts: Iterable[int]) -> None:
    """Let the speculator capture a graph for each of these numbers of forwards, and no other.

    Steps with another number of forwards run without a graph, as often as they should.
    """
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import (
        SpeculatorBatchDescriptor,
    )

    manager, wanted = speculator.decode_cudagraph_manager, sorted(counts, reverse=True)
    original = manager.capture

    def capture(*args: Any, **kwargs: Any) -> Any:
        if speculator.supports_decode_metadata_update:
            manager._capture_descs = {
                mode: [
                    SpeculatorBatchDescriptor(**vars(each), num_speculative_tokens=count)
                    for each in descriptions
                    for count in wanted
                ]
                for mode, descriptions in manager._capture_descs.items()
            }
            kwargs["specialize_spec_tokens"] = False
        return original(*args, **kwargs)

    manager.capture = capture
