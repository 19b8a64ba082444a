"""Says of device functions which functions of the host they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton

TWINS: dict[str, Callable[..., Any]] = {}
"""Host function, by its path in `adaspec` -> the device function that means it."""


def device(*twins: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a device function that means what these functions of the host say.

    Arguments of the same name stand in the same order in both.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        TWINS.update(dict.fromkeys(twins, function))
        return triton.jit(function, **options)

    return compiled
