"""One tree for several rows at once, in vector registers.

Numba knows no vector type, so the loop over a tree's splits is written in LLVM's own terms; LLVM
lowers it to whatever vectors the machine has. Nothing here checks a bound.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""Rows walked side by side."""

_I1 = ir.IntType(1)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_F64 = ir.DoubleType()
_ROWS = ir.VectorType(_I32, LANES)
_SUMS = ir.VectorType(_F64, LANES)


def _spread(builder: Any, value: Any) -> Any:
    """The scalar in every lane."""
    one = builder.insert_element(ir.Constant(_ROWS, ir.Undefined), value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, one, ir.Constant(_ROWS, [0] * LANES))


@intrinsic
def add_leaves(
    typingctx: Any,
    keys: Any,
    columns: Any,
    masks: Any,
    splits: Any,
    block: Any,
    leaves: Any,
    sums: Any,
) -> Any:
    """Add the leaf of one tree that each lane falls into to that lane's float64 in `sums`.

    All are addresses but `splits`. Per split: the int32 key a lane must exceed to go right, the
    int32 column it compares, and the uint32 mask without the leaves on the left. `block` holds
    LANES int32 keys per column. A leaf is the first bit that no mask took.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = [builder.inttoptr(arg, _I32.as_pointer()) for arg in args[:3]]
        block = builder.inttoptr(args[4], _I32.as_pointer())
        leaves = builder.inttoptr(args[5], _F64.as_pointer())
        sums = builder.inttoptr(args[6], _SUMS.as_pointer())
        alive = cgutils.alloca_once_value(builder, ir.Constant(_ROWS, [-1] * LANES))
        with cgutils.for_range(builder, args[3], intp=_I64) as loop:
            key, column, mask = (builder.load(builder.gep(word, [loop.index])) for word in words)
            at = builder.mul(builder.zext(column, _I64), ir.Constant(_I64, LANES))
            at = builder.bitcast(builder.gep(block, [at]), _ROWS.as_pointer())
            right = builder.icmp_signed(">", builder.load(at, align=4), _spread(builder, key))
            bits = builder.load(alive)
            kept = builder.and_(bits, _spread(builder, mask))
            builder.store(builder.select(right, kept, bits), alive)
        zeros = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_ROWS, [_ROWS, _I1]), f"llvm.cttz.v{LANES}i32"
        )
        first = builder.call(zeros, [builder.load(alive), ir.Constant(_I1, 1)])
        values = ir.Constant(_SUMS, ir.Undefined)
        for lane in range(LANES):
            place = ir.Constant(_I32, lane)
            leaf = builder.zext(builder.extract_element(first, place), _I64)
            value = builder.load(builder.gep(leaves, [leaf]))
            values = builder.insert_element(values, value, place)
        total = builder.fadd(builder.load(sums, align=8), values)
        builder.store(total, sums, align=8)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), codegen
