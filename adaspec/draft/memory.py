"""Load, store and prefetch words of memory by address, in compiled code.

The index keeps each request in one buffer and works on a full batch of requests at once. Numba has
no array of arrays, so the compiled code gets base addresses. Nothing in this module checks bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def _address(builder: Any, base: Any, index: Any, kind: Any) -> Any:
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [index])


def _loads(kind: Any) -> Any:
    def load(typingctx: Any, base: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.sext(builder.load(_address(builder, args[0], args[1], kind)), _I64)

        return types.int64(types.int64, types.int64), codegen

    return intrinsic(load)


def _stores(kind: Any) -> Any:
    def store(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = builder.trunc(args[2], kind)
            builder.store(word, _address(builder, args[0], args[1], kind))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return intrinsic(store)


def _prefetch(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _I8.as_pointer()
        hint = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
        )
        read, keep, data = ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)
        builder.call(hint, [builder.inttoptr(args[0], pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


# The annotations are those that compiled code sees; numba itself calls these with types instead.
load: Callable[[int, int], int] = _loads(_I32)
"""load(base, index): the int32 word number `index` from the address `base`, as int64."""

load_long: Callable[[int, int], int] = _loads(_I64)
"""load_long(base, index): as `load`, with words of 64 bits."""

store: Callable[[int, int, int], None] = _stores(_I32)
"""store(base, index, value): write the low 32 bits of `value` to word `index`."""

store_long: Callable[[int, int, int], None] = _stores(_I64)
"""store_long(base, index, value): as `store`, with words of 64 bits."""

prefetch: Callable[[int], None] = intrinsic(_prefetch)
"""prefetch(address): prefetch the cache line at `address`; this never faults or changes data."""
