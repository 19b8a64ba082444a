"""Which of vLLM's model runners serves, and why."""

from __future__ import annotations

import os

from adaspec.errors import ServingError
from adaspec.vllm.patching import METHOD, V2_VARIABLE

DRAFTS = ("eagle", "eagle3", "mtp", "draft_model", None)
"""The methods of drafting that are known on V2; None: n-gram look-up alone."""


def runner_of(method: str | None, on_cpu: bool, why_v1: str = "") -> tuple[str, str]:
    """V1 or V2, and the reason if it is V1; raises a `ServingError` where V2 is forced in vain."""
    wanted = os.environ.get(V2_VARIABLE, "").strip()
    problem = why_v1 or ("" if method in DRAFTS else f"a drafter of method '{method}'")
    if wanted and not wanted.isdecimal():
        raise ServingError(f"{V2_VARIABLE}={wanted}: vLLM reads a number there: set it to 0 or 1")
    if not wanted or int(wanted) == 0:
        if wanted:
            problem = f"{V2_VARIABLE}={wanted}"
        elif not problem and on_cpu:
            problem = "vLLM has V2 on accelerators alone"
    elif problem:
        raise ServingError(
            f"method '{METHOD}' does not go with {V2_VARIABLE}={wanted} here: {problem}: unset it"
        )
    return ("V1" if problem else "V2"), problem
