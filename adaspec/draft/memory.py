"""Words of memory by address, for compiled code: load, store, prefetch.

An index keeps each request in one buffer and works on a whole batch of them at once. Numba has no
array of arrays, so the compiled code is handed base addresses. Nothing here checks a bound.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_I8 = ir.IntType(8)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


def _word(builder: Any, base: Any, at: Any, kind: Any) -> Any:
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [at])


@intrinsic
def load(typingctx: Any, base: Any, at: Any) -> Any:
    """The int32 at word `at` behind the address `base`, as int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sext(builder.load(_word(builder, args[0], args[1], _I32)), _I64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def load_long(typingctx: Any, base: Any, at: Any) -> Any:
    """The int64 at the `at`-th eight bytes behind the address `base`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_word(builder, args[0], args[1], _I64))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store(typingctx: Any, base: Any, at: Any, value: Any) -> Any:
    """Write the low 32 bits of `value` to word `at` behind the address `base`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(
            builder.trunc(args[2], _I32), _word(builder, args[0], args[1], _I32)
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def store_long(typingctx: Any, base: Any, at: Any, value: Any) -> Any:
    """Write int64 `value` to the `at`-th eight bytes behind the address `base`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _word(builder, args[0], args[1], _I64))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at `address`; never faults, changes nothing."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _I8.as_pointer()
        hint = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
        )
        read, keep, data = ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)
        builder.call(hint, [builder.inttoptr(args[0], pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen
