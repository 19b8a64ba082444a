"""Words of memory by address, in compiled code.

Compiled code works on a full batch of requests at once, each with memory of its own. Numba has no
array of arrays, so it gets their addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from adaspec.jit import compiled


def _pointer_to(typingctx: Any, address: Any) -> Any:
    kind = types.CPointer(types.int32)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(kind))

    return kind(types.int64), codegen


# The annotation is what compiled code sees; numba itself calls the function with types instead.
_pointer: Callable[[int], Any] = intrinsic(_pointer_to)


@compiled
def words_at(address: int, count: int) -> NDArray[np.int32]:
    """The `count` words from an address on; nothing checks that they are there."""
    words: NDArray[np.int32] = carray(_pointer(address), count)
    return words
