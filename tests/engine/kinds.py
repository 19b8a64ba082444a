"""Kinds of requests that drafts must not disturb, as the tests on both model runners ask them."""

from live_engine import sampling
from tiny_models import document, ids_of

KINDS = ("reach the longest length", "structured", "may not stop yet")


def requests_of(kind, prompts):
    """Prompts and sampling parameters of a kind of requests."""
    from vllm.sampling_params import StructuredOutputsParams

    if kind == "reach the longest length":
        asked = [ids_of(document(50 + at, 30))[: 354 + 3 * at] for at in range(6)]
        return asked, [sampling(100)] * 6
    if kind == "structured":
        rules = StructuredOutputsParams(regex=r"(row\.update\((row|table), [0-9]\);\n){3}")
        return prompts, [sampling(60, structured_outputs=rules)] * len(prompts)
    newline, some = ids_of("\n")[0], prompts[: len(prompts) // 2]
    return some * 3, [
        sampling(40, ignore_eos=False, stop_token_ids=[newline], min_tokens=least)
        for least in (0, 7, 21)
        for _ in some
    ]
