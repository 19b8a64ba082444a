"""Parts of a V2 engine that tests make by hand."""

import numpy as np

from adaspec.predict.tables import packed
from adaspec.vllm.session.report import StepReport


def no_tables():
    nothing = np.empty(0, np.float32)
    return packed(np.empty(0, np.uint64), *[nothing] * 3, (0.5, 0.5, 1.0, 1.0), 1)


def report_of(survival, neural, context=20):
    """A report of drafts with these chances, of which so many tokens are the neural drafter's."""
    survival = np.array(survival, np.float64)
    rows, cap = survival.shape
    length = (survival > 0).sum(axis=1).astype(np.int32)
    ones = np.ones(rows, np.int32)
    return StepReport(
        context=context * ones,
        sampled=ones,
        rejected=0 * ones,
        neural=np.array(neural, np.int32),
        length=length,
        available=length,
        remembered=0 * ones,
        neural_gain=np.zeros(rows),
        emitted=np.ones((rows, cap + 1), np.int32),
        tokens=np.ones((rows, cap), np.int32),
        survival=survival,
        drafted=np.zeros((rows, 0), np.int32),
        confidences=np.zeros((rows, 0, 3), np.float32),
    )
