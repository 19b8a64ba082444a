"""Run one tree for several rows at once, in vector registers.

Numba has no vector type, so the loop over a tree's splits is written as LLVM code, which LLVM
compiles to the vectors that the machine has. Nothing in this module checks bounds.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import core, extending, types

LANES, FEW_LANES = 16, 8
"""The numbers of rows that run side by side; the smaller takes half to two thirds of the time."""

# Numba has no types for these two, or none that allow the calls of compiled code.
cgutils: Any = core.cgutils
intrinsic: Any = extending.intrinsic

_I1 = ir.IntType(1)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_F64 = ir.DoubleType()


def _spread(builder: Any, value: Any, lanes: int) -> Any:
    """A vector with the scalar in every lane."""
    rows = ir.VectorType(_I32, lanes)
    one = builder.insert_element(ir.Constant(rows, ir.Undefined), value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, one, ir.Constant(rows, [0] * lanes))


def _add_leaves(lanes: int) -> Any:
    """The LLVM code of `add_leaves` for a number of lanes."""
    rows, values = ir.VectorType(_I32, lanes), ir.VectorType(_F64, lanes)
    ones = ir.Constant(rows, [-1] * lanes)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = [builder.inttoptr(arg, _I32.as_pointer()) for arg in args[:3]]
        block = builder.inttoptr(args[4], _I32.as_pointer())
        leaves = builder.inttoptr(args[5], _F64.as_pointer())
        sums = builder.inttoptr(args[6], values.as_pointer())
        alive = cgutils.alloca_once(builder, rows)
        builder.store(ones, alive)
        with cgutils.for_range(builder, args[3], intp=_I64) as loop:
            key, column, mask = (builder.load(builder.gep(word, [loop.index])) for word in words)
            address = builder.mul(builder.zext(column, _I64), ir.Constant(_I64, lanes))
            address = builder.bitcast(builder.gep(block, [address]), rows.as_pointer())
            right = builder.icmp_signed(
                ">", builder.load(address, align=4), _spread(builder, key, lanes)
            )
            bits = builder.load(alive)
            kept = builder.and_(bits, _spread(builder, mask, lanes))
            builder.store(builder.select(right, kept, bits), alive)
        count_zeros = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(rows, [rows, _I1]), f"llvm.cttz.v{lanes}i32"
        )
        first = builder.call(count_zeros, [builder.load(alive), ir.Constant(_I1, 1)])
        leaf_values = ir.Constant(values, ir.Undefined)
        for lane in range(lanes):
            place = ir.Constant(_I32, lane)
            leaf = builder.zext(builder.extract_element(first, place), _I64)
            value = builder.load(builder.gep(leaves, [leaf]))
            leaf_values = builder.insert_element(leaf_values, value, place)
        builder.store(builder.fadd(builder.load(sums, align=8), leaf_values), sums, align=8)
        return context.get_dummy_value()

    return codegen


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
    """Add, for each lane, the value of its leaf in one tree to the lane's float64 in `sums`.

    All arguments but `splits` are addresses. Each split has the int32 key that a lane exceeds to
    go right, the int32 column that it compares, and the uint32 mask without the leaves on its left.
    `block` has LANES int32 keys per column. A lane's leaf is the first bit that no mask removed.
    """
    return types.void(*[types.int64] * 7), _add_leaves(LANES)


@intrinsic
def add_few_leaves(
    typingctx: Any,
    keys: Any,
    columns: Any,
    masks: Any,
    splits: Any,
    block: Any,
    leaves: Any,
    sums: Any,
) -> Any:
    """`add_leaves` for FEW_LANES lanes."""
    return types.void(*[types.int64] * 7), _add_leaves(FEW_LANES)
