"""Words of memory by address, in compiled code.

Compiled code works on a full batch of requests at once, each with memory of its own. Numba has no
array of arrays, so it gets their addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
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


def _prefetches(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        hint = builder.module.declare_intrinsic(
            "llvm.prefetch",
            [pointer],
            ir.FunctionType(ir.VoidType(), [pointer, number, number, number]),
        )
        read, keep, data = ir.Constant(number, 0), ir.Constant(number, 3), ir.Constant(number, 1)
        builder.call(hint, [builder.inttoptr(args[0], pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


_prefetch: Callable[[int], None] = intrinsic(_prefetches)


@compiled
def prefetch(words: NDArray[np.int32], index: int) -> None:
    """Have a word in the cache soon; nothing else happens, wherever the index points."""
    _prefetch(words.ctypes.data + 4 * index)


@compiled
def words_at(address: int, count: int) -> NDArray[np.int32]:
    """The `count` words from an address on; nothing checks that they are there."""
    words: NDArray[np.int32] = carray(_pointer(address), count)
    return words
