"""Captures a head's forwards in CUDA graphs as often as the policy runs them.

Most attention backends let vLLM hold all forwards of a draft, but for the first, in one graph. It
captures that for the longest draft, and replays it whole for a shorter one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def capture_forwards(speculator: Any, counts: Iterable[int]) -> None:
    """Let the speculator capture a graph for each of these numbers of forwards, and no other.

    Steps with another number of forwards run without a graph, as often as they should.
    """
    manager, wanted = speculator.decode_cudagraph_manager, sorted(counts, reverse=True)
    original = manager.capture

    def capture(*args: Any, **kwargs: Any) -> Any:
        if speculator.supports_decode_metadata_update:
            manager._capture_descs = {
                mode: [_of(each, count) for each in descriptions for count in wanted]
                for mode, descriptions in manager._capture_descs.items()
            }
            kwargs["specialize_spec_tokens"] = False
        return original(*args, **kwargs)

    manager.capture = capture


def _of(description: Any, forwards: int) -> Any:
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import (
        SpeculatorBatchDescriptor,
    )

    return SpeculatorBatchDescriptor(**vars(description), num_speculative_tokens=forwards)
