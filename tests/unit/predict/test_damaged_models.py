"""A model of damaged arrays is refused in one line, or is one that predicts."""

import numpy as np
from random_models import random_model
from random_rows import random_rows, random_shown, random_table
from refusals import refusal
from test_prediction import predicted

from adaspec.errors import PolicyError
from adaspec.predict.model import model_from

DAMAGES = {
    "turned round": lambda a: np.flip(a).copy(),
    "cut": lambda a: a[1:],
    "one entry twice": lambda a: np.concatenate([a[:-1], a[-2:-1], a[-1:]]),
    "one entry for another": lambda a: np.concatenate([a[:-1], a[-2:-1]]),
    "one more dimension": lambda a: a[None],
    "negative": lambda a: -a,
    "negative at its end": lambda a: np.append(a.flat[:-1], -a.flat[-1:]).reshape(a.shape),
    "larger": lambda a: a + a.dtype.type(1),
    "zero": lambda a: a * a.dtype.type(0),
    "huge": lambda a: a * a.dtype.type(100),
    "no number": lambda a: np.full(a.shape, np.nan, np.result_type(a, np.float32)),
    "infinite": lambda a: a + np.float32(np.inf),
    "of another type": lambda a: a.astype(np.int32 if a.dtype.kind != "i" else np.int64),
    "objects": lambda a: a.astype(object),
}
SOURCES = ("neural", "ngram", "splice")
SOUND = {
    **{f"curve-{source}.edges": {"larger", "huge"} for source in SOURCES},
    **{f"curve-{source}.shapes": {"one entry for another"} for source in SOURCES},
    "keys": {"larger"},
    "means": {"turned round", "zero", "one entry for another"},
    "counts": {"turned round", "larger", "zero", "huge", "one entry for another"},
    "depths": {"turned round", "larger", "zero", "huge", "one entry for another"},
    "base": {"zero", "one entry for another"},
    "salt": {
        "turned round",
        "one entry twice",
        "negative at its end",
        "negative",
        "larger",
        "zero",
        "huge",
    },
}
"""What of a table or a curve may have been meant; any weight of a network may."""


def test_a_model_with_any_array_damaged_is_refused_or_predicts_and_one_that_lacks_it_is_refused():
    rng = np.random.default_rng(3)
    model = random_model(6, random_table(rng), evidence=True)
    rows = random_rows(rng, 3)
    shown, parts = random_shown(rng, rows), (model.network_arrays(), model.table_arrays())
    again = model_from(*parts)
    for before, after in zip(parts, (again.network_arrays(), again.table_arrays()), strict=True):
        assert before.keys() == after.keys()
        for name, array in before.items():
            np.testing.assert_array_equal(after[name], array)
    found = {}
    with np.errstate(all="ignore"):
        for name, array in (parts[0] | parts[1]).items():
            found[name] = set()
            for damage, harm in DAMAGES.items():
                damaged = [each | ({name: harm(array)} if name in each else {}) for each in parts]
                try:
                    made = model_from(*damaged)
                except PolicyError as error:
                    assert str(error).isprintable()
                else:
                    found[name].add(damage)
                    predicted(made, rows, shown)
            lacking = [{key: a for key, a in each.items() if key != name} for each in parts]
            refusal(PolicyError, model_from, *lacking)
    assert {name: kinds for name, kinds in found.items() if name in SOUND} == SOUND
    for name in ("curve-other.edges", "ear.heads", "loose", "before.more"):
        refusal(PolicyError, model_from, parts[0] | {name: np.zeros(1)}, parts[1])
    refusal(PolicyError, model_from, parts[0], parts[1] | {"more": np.zeros(1)})
