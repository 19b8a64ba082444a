"""Checks arrays that were read from a file: compiled code does not check where it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError, nearest

Kinds = Mapping[str, tuple[type[np.number[Any]], tuple[str, ...]]]
"""The type and axes of each array."""


def sound_arrays(
    what: str, arrays: Mapping[str, NDArray[Any]], kinds: Kinds, **sizes: int
) -> dict[str, NDArray[Any]]:
    """The arrays, contiguous; a `PolicyError` unless they are finite and of these kinds.

    An axis is as long as `sizes` says, or else as in the first array that has it.
    """
    for name in [*arrays, *kinds]:
        if name not in kinds:
            raise PolicyError(f"{what}: unknown array '{name}'{nearest(name, kinds)}")
        if name not in arrays:
            raise PolicyError(f"{what}: array '{name}' is missing")
    for name, (kind, axes) in kinds.items():
        found = arrays[name]
        for axis, size in zip(axes, found.shape, strict=False):
            sizes.setdefault(axis, size)
        shape = tuple(sizes.get(axis, 0) for axis in axes)
        if found.dtype != kind or found.shape != shape:
            raise PolicyError(
                f"{what}: {name} is {found.dtype} of shape {found.shape}: it must be "
                f"{np.dtype(kind)} of shape {shape}"
            )
        if not np.isfinite(found).all():
            raise PolicyError(f"{what}: {name} holds a number that is not finite")
    return {name: np.ascontiguousarray(arrays[name]) for name in kinds}
