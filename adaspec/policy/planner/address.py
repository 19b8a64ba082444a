"""A planner behind one address, for compiled code that is called from Python.

To hand a compiled function some seventy arrays takes longer than most decisions. So they are
handed over once: a `Pinned` notes where each of them lies, and compiled code that is given the
address of that note reads from it what it needs, by way of `planner_at`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core.typing.templates import AttributeTemplate

from adaspec.cost.model import line
from adaspec.jit import compiled
from adaspec.policy.planner.state import (
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    LONGEST_SPLICE,
    Planner,
    new_planner,
)
from adaspec.predict.model import HEADS, Model, no_curves
from adaspec.predict.network import constant_network
from adaspec.predict.tables import no_tables

_typeof: Any = numba.typeof


class Pinned:
    """Keeps a planner's arrays alive, and knows the address of their note."""

    def __init__(self, value: Planner) -> None:
        self.value: Planner = _writable(value)
        if _typeof(self.value) != _planner_type():
            raise TypeError(
                f"a planner is laid out as {_typeof(self.value)}, not as compiled code is"
            )
        self._note = np.zeros(_words_of(self.value), np.int64)
        self.address = self._note.ctypes.data
        _write(self.value, self.address)


def _writable(value: Any) -> Any:
    """The same numbers and arrays, those that are read-only or not in one piece as copies."""
    if isinstance(value, tuple):
        return type(value)(*(_writable(each) for each in value))  # a NamedTuple
    if isinstance(value, np.ndarray):
        return np.require(value, requirements=("C", "A", "W"))
    return value


@lru_cache(maxsize=1)
def _planner_type() -> Any:
    """The numba type of every planner, by one whose model knows nothing."""
    longest = {"ngram": LONGEST_NGRAM, "neural": LONGEST_NEURAL, "splice": LONGEST_SPLICE}
    model = Model(
        networks={group: constant_network([0.0] * len(heads)) for group, heads in HEADS.items()},
        curves={name: no_curves(most) for name, most in longest.items()},
        tables=no_tables(),
    )
    costs = line("none", 1.0, 0.0).constants()
    return _typeof(_writable(new_planner(model, costs, 1, 1, 1, reads_drafts=False)))


def _unowned(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The value without what would count its references: the `Pinned` keeps the arrays alive."""
    tuples: Any = types.BaseTuple
    arrays: Any = types.Array
    if isinstance(kind, tuples):
        for index, each in enumerate(kind):
            part = _unowned(context, builder, each, builder.extract_value(value, index))
            value = builder.insert_value(value, part, index)
        return value
    if not isinstance(kind, arrays):
        return value
    array = context.make_array(kind)(context, builder, value)
    for field in ("meminfo", "parent"):
        setattr(array, field, ir.Constant(getattr(array, field).type, None))
    return array._getvalue()


def _store(typingctx: Any, value: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = context.get_value_type(value).as_pointer()
        bare = _unowned(context, builder, value, args[0])
        builder.store(bare, builder.inttoptr(args[1], pointer))
        return context.get_dummy_value()

    return types.void(value, types.int64), codegen


def _size(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(
            types.int64, context.get_abi_sizeof(context.get_value_type(value))
        )

    return types.int64(value), codegen


class _PinnedTuple(types.Type):  # numba has no types
    """The numba type of what `planner_at` returns: the address of a named tuple.

    Its members are loaded one by one, as they are read: a planner handed over by value is a
    thousand machine words, and every function that takes it would copy them all.
    """

    def __init__(self, pinned: Any) -> None:
        self.pinned = pinned
        super().__init__(name=f"Pinned({pinned})")


extending.register_model(_PinnedTuple)(extending.models.OpaqueModel)


@extending.infer_getattr
class _MemberTypes(AttributeTemplate):
    key = _PinnedTuple

    def generic_resolve(self, value: Any, name: str) -> Any:
        fields = value.pinned.fields
        return _read_as(value.pinned.types[fields.index(name)]) if name in fields else None


def _read_as(member: Any) -> Any:
    """Tuples inside a pinned one are pinned, too; all else is loaded."""
    base: Any = types.BaseTuple
    return _PinnedTuple(member) if isinstance(member, base) else member


@extending.lower_getattr_generic(_PinnedTuple)
def _member(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    place = kind.pinned.fields.index(name)
    pointer = builder.bitcast(value, context.get_value_type(kind.pinned).as_pointer())
    index = [context.get_constant(types.int32, each) for each in (0, place)]
    member = builder.gep(pointer, index, inbounds=True)
    if isinstance(_read_as(kind.pinned.types[place]), _PinnedTuple):
        return builder.bitcast(member, value.type)
    return builder.load(member)


def _pinned_at(type_of: Callable[[], Any]) -> Any:
    def at(typingctx: Any, address: Any) -> Any:
        kind = _PinnedTuple(type_of())

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(kind))

        return kind(types.int64), codegen

    return at


# Numba types an intrinsic as what its compile-time half takes; callers see the run-time half.
_intrinsic: Any = extending.intrinsic
_stored: Callable[[Any, int], None] = _intrinsic(_store)
_sized: Callable[[Any], int] = _intrinsic(_size)

planner_at: Callable[[int], Planner] = _intrinsic(_pinned_at(_planner_type))
"""planner_at(address): the planner that is pinned there; only in compiled code."""


@compiled
def _write(value: Any, address: int) -> None:
    _stored(value, address)


@compiled
def _words_of(value: Any) -> int:
    return (_sized(value) + 7) // 8
