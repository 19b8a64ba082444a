"""A sound request, to be bent by the tests."""

import numpy as np

from adaspec.trace.schema import Request


def request_of(id="0", workload="chat", **changes):
    """A request of 8 output tokens, 2 of 3 drafted tokens accepted at position 2."""
    accepted = np.zeros(8, np.int16)
    accepted[0], accepted[2] = -1, 2
    drafted = np.full((8, 4), -1, np.int32)
    drafted[2, :3] = [102, 103, 7]
    confidences = np.full((8, 4, 3), np.nan, np.float32)
    confidences[2, :3] = [[-0.1, 0.8, 0.2], [-0.5, 0.4, np.nan], [-2.0, 0.1, 1.5]]
    fields = {
        "prompt_tokens": np.arange(5, dtype=np.int32),
        "output_tokens": np.arange(100, 108, dtype=np.int32),
        "neural_accepted": accepted,
        "drafted_tokens": drafted,
        "confidences": confidences,
    }
    return Request(workload, id, **(fields | changes))
