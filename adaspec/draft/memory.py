"""Words of memory by address, for compiled code: load, store, prefetch.

An index keeps each request in one buffer and works on a whole batch of them at once. Numba has no
array of arrays, so the compiled code is handed base addresses. Nothing here checks a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_I8 = ir.IntType(8)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


def _word(builder: Any, base: Any, at: Any, kind: Any) -> Any:
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [at])


def _load(typingctx: Any, base: Any, at: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sext(builder.load(_word(builder, args[0], args[1], _I32)), _I64)

    return types.int64(types.int64, types.int64), codegen


def _load_long(typingctx: Any, base: Any, at: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_word(builder, args[0], args[1], _I64))

    return types.int64(types.int64, types.int64), codegen


def _store(typingctx: Any, base: Any, at: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        low = builder.trunc(args[2], _I32)
        builder.store(low, _word(builder, args[0], args[1], _I32))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _store_long(typingctx: Any, base: Any, at: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _word(builder, args[0], args[1], _I64))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


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


# Numba types an intrinsic as what its compile-time half takes; callers see the run-time half.
_intrinsic: Any = intrinsic

load: Callable[[int, int], int] = _intrinsic(_load)
"""load(base, at): the int32 at word `at` behind the address `base`, as int64."""

load_long: Callable[[int, int], int] = _intrinsic(_load_long)
"""load_long(base, at): the int64 at the `at`-th eight bytes behind the address `base`."""

store: Callable[[int, int, int], None] = _intrinsic(_store)
"""store(base, at, value): write the low 32 bits of `value` to word `at` behind `base`."""

store_long: Callable[[int, int, int], None] = _intrinsic(_store_long)
"""store_long(base, at, value): write int64 `value` to the `at`-th eight bytes behind `base`."""

prefetch: Callable[[int], None] = _intrinsic(_prefetch)
"""prefetch(address): ask for the cache line at `address`; never faults, changes nothing."""
