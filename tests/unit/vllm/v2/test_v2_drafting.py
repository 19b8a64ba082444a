"""Our step on a V2 engine runs where no tensor has values, so that nothing waits for the device.

A fake tensor refuses whatever would need its values (`item`, boolean indexing, `nonzero`). A meta
tensor refuses, besides, to meet a tensor that was made on another device than its own.
"""

import pytest
from random_models import random_model
from v2_fakes import no_tables

from adaspec.policy.learned import LearnedPolicy

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from adaspec.device.answers import Answers  # noqa: E402
from adaspec.device.predictor import Batch  # noqa: E402
from adaspec.draft.answers import LEAST_BYTES, AnswerIndex  # noqa: E402
from adaspec.vllm.v2.drafting import Drafting  # noqa: E402

INDEX = AnswerIndex(LEAST_BYTES)
SLOTS, ROWS, CONTEXT, CAP, VOCABULARY = 6, 4, 120, 8, 50


def steps(drafting, device, forwards, limited):
    """Two steps of rows whose text repeats; the drafts of the second."""
    text = (torch.arange(CONTEXT, dtype=torch.int32, device=device) % 7).repeat(SLOTS, 1)
    few = torch.ones(ROWS, dtype=torch.int32, device=device)
    counts = torch.full((SLOTS,), 40, dtype=torch.int32, device=device)
    batch = Batch(
        slots=torch.arange(ROWS, device=device),
        tokens=text,
        context_tokens=counts,
        prompt_tokens=counts // 2,
        holds_neural=torch.ones(SLOTS, dtype=torch.bool, device=device),
        sampled=few,
        rejected=few - 1,
    )
    settings = torch.tensor([0.01, 1.0, 1.0, 1.0], dtype=torch.float64, device=device)
    confidences = torch.zeros((forwards, ROWS, 3), device=device)
    tokens = torch.ones((ROWS, forwards), dtype=torch.int64, device=device)
    limits = torch.zeros((ROWS, 2), dtype=torch.int32, device=device) if limited else None
    for _ in range(2):
        step = drafting.begin(batch, settings)
        drafting.revise(step, tokens, confidences)
        drafts = drafting.finish(step, tokens, confidences, limits)
        batch = batch._replace(context_tokens=counts + 1)
    return drafts


def drafting_of(evidence, remembers, device):
    answers = Answers.of(INDEX, SLOTS, device) if remembers else None
    policy = LearnedPolicy("random", random_model(5, no_tables(), evidence=evidence), CAP, 4)
    return Drafting(policy, SLOTS, CAP, 4, VOCABULARY, device, answers)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("forwards", [0, 1, 3])
@pytest.mark.parametrize(("evidence", "remembers"), [(False, True), (True, False), (True, True)])
def test_nothing_waits_for_the_device(evidence, remembers, forwards, limited):
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        drafting = drafting_of(evidence, remembers, torch.device("cpu"))
        mode.allow_non_fake_inputs = False
        drafts = steps(drafting, torch.device("cpu"), forwards, limited)
    assert drafts.tokens.shape == drafts.survival.shape == (ROWS, CAP)
    meta = torch.device("meta")
    drafts = steps(drafting_of(evidence, remembers, meta), meta, forwards, limited)
    assert drafts.report.device == meta
