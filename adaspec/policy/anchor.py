"""A policy's whole memory behind one address, for compiled code that is called from Python.

To hand a compiled function some seventy arrays takes longer than most decisions. So they are
handed over once: `anchored` notes where each of them lies, and compiled code that is given the
address of that note gets all of them back with `recall`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.policy.desk import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE, Desk, new_desk
from adaspec.predict.features import CANDIDATE, TAIL, Rows
from adaspec.predict.forest import Forest
from adaspec.predict.model import FEATURE_NAMES, HEADS, Mind, Model, no_curves
from adaspec.predict.tables import packed

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

CAP, NEURAL_CAP, READS, COUNT = range(4)
"""Numbers of `Post.limits`: caps, whether drafts are read as evidence, and rows of this step."""


class Post(NamedTuple):
    """Everything that a policy's stages read and write."""

    mind: Mind
    desk: Desk
    knobs: Array
    cost: Array
    rows: Rows
    """Room for as many rows as there are slots; the first `limits[COUNT]` are this step's."""
    everyone: Ints
    limits: Longs


def new_post(
    mind: Mind, desk: Desk, knobs: Array, cost: Array, slots: int, cap: int, neural_cap: int
) -> Post:
    """A policy's memory; `limits[READS]` is 0."""
    ints = [np.zeros(slots, np.int32) for _ in range(8)]
    return Post(
        mind=mind,
        desk=desk,
        knobs=knobs,
        cost=cost,
        rows=Rows(
            slots=ints[0],
            prompt_tokens=ints[1],
            position=ints[2],
            holds_neural=np.zeros(slots, np.bool_),
            length=ints[3],
            start=ints[4],
            agree=ints[5],
            seen=ints[6],
            available=ints[7],
            tail=np.zeros((slots, TAIL), np.int32),
            candidate=np.zeros((slots, CANDIDATE), np.int32),
        ),
        everyone=np.arange(slots, dtype=np.int32),
        limits=np.array([cap, neural_cap, 0, 0], np.int64),
    )


class Anchor:
    """Holds a post in memory, and knows the address of the note that says where."""

    def __init__(self, post: Post) -> None:
        self.post = _settled(post)
        found = _type_of(self.post)
        if found != _post_type():
            raise TypeError(f"a policy's memory is laid out as {found}, not as compiled code is")
        self._note = np.zeros(_words_of(self.post), np.int64)
        self.address = self._note.ctypes.data
        _write(self.post, self.address)


def _settled(value: Any) -> Any:
    """The same arrays, those that are read-only or not in one piece as copies."""
    if isinstance(value, tuple):
        return type(value)(*(_settled(each) for each in value))  # a NamedTuple
    return np.require(value, requirements=("C", "A", "W"))


@lru_cache(maxsize=1)
def _post_type() -> Any:
    """The numba type of every post: that of a model which knows nothing."""
    longest = {"ngram": LONGEST_NGRAM, "neural": LONGEST_NEURAL, "splice": LONGEST_SPLICE}
    few = np.empty(0, np.float32)
    nothing = Model(
        forests={group: _no_trees(group) for group in HEADS},
        curves={name: no_curves(most) for name, most in longest.items()},
        tables=packed(np.empty(0, np.uint64), few, few, few, (0, 0, 0, 0), 1),
    )
    return _type_of(
        new_post(nothing.mind(), new_desk([nothing], 1), np.zeros(1), np.zeros(1), 1, 1, 1)
    )


def _type_of(post: Post) -> Any:
    typeof: Any = numba.typeof
    return typeof(post)


def _no_trees(group: str) -> Forest:
    heads = len(HEADS[group])
    return Forest(
        features=FEATURE_NAMES[group],
        heads=HEADS[group],
        head_trees=np.zeros(heads + 1, np.int64),
        head_constant=np.zeros(heads),
        head_scale=np.ones(heads),
        head_link=np.zeros(heads, np.int8),
        tree_slots=np.zeros(1, np.int64),
        slot_column=np.zeros(0, np.int32),
        slot_number=np.zeros(0),
        column_feature=np.zeros(0, np.int32),
        column_nan=np.zeros(0, np.int8),
        column_zero=np.zeros(0, np.int8),
        column_words=np.zeros(1, np.int32),
        words=np.zeros(0, np.uint32),
    )


def _unowned(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The value without what would count its references: the `Anchor` keeps the arrays alive."""
    tuples: Any = types.BaseTuple
    if isinstance(kind, tuples):
        for at, each in enumerate(kind):
            held = _unowned(context, builder, each, builder.extract_value(value, at))
            value = builder.insert_value(value, held, at)
        return value
    array = context.make_array(kind)(context, builder, value)
    for field in ("meminfo", "parent"):
        setattr(array, field, ir.Constant(getattr(array, field).type, None))
    return array._getvalue()


def _store(typingctx: Any, post: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = context.get_value_type(post).as_pointer()
        bare = _unowned(context, builder, post, args[0])
        builder.store(bare, builder.inttoptr(args[1], pointer))
        return context.get_dummy_value()

    return types.void(post, types.int64), codegen


def _size(typingctx: Any, post: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(
            types.int64, context.get_abi_sizeof(context.get_value_type(post))
        )

    return types.int64(post), codegen


def _load(typingctx: Any, address: Any) -> Any:
    post = _post_type()

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = context.get_value_type(post).as_pointer()
        return builder.load(builder.inttoptr(args[0], pointer))

    return post(types.int64), codegen


# Numba types an intrinsic as what its compile-time half takes; callers see the run-time half.
_intrinsic: Any = extending.intrinsic
_stored: Callable[[Post, int], None] = _intrinsic(_store)
_sized: Callable[[Post], int] = _intrinsic(_size)

recall: Callable[[int], Post] = _intrinsic(_load)
"""recall(address): the post of the `Anchor` that has this address; only in compiled code."""


@compiled
def _write(post: Post, address: int) -> None:
    _stored(post, address)


@compiled
def _words_of(post: Post) -> int:
    return (_sized(post) + 7) // 8
