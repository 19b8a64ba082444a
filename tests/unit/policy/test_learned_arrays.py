"""A model comes back from its arrays as it went, and damage is refused."""

from __future__ import annotations

import numpy as np
import pytest
from random_models import random_model
from random_recordings import random_requests, recording_of

from adaspec.errors import PolicyError
from adaspec.predict.model import Model, model_from
from adaspec.train.token_tables import TableMaker


def model_of(*, evidence: bool) -> Model:
    recording = recording_of(random_requests(1, 8, tokens=False))
    return random_model(5, TableMaker(recording, 0).make(np.ones(8, np.bool_)), evidence=evidence)


@pytest.mark.parametrize("evidence", [False, True])
def test_a_model_comes_back_from_its_arrays(evidence: bool) -> None:
    model = model_of(evidence=evidence)
    back = model_from(model.network_arrays(), model.table_arrays())
    assert back.reads_evidence is evidence
    for whole, again in (
        (model.network_arrays(), back.network_arrays()),
        (model.table_arrays(), back.table_arrays()),
    ):
        assert list(whole) == list(again)
        for name, array in whole.items():
            np.testing.assert_array_equal(again[name], array)


def test_a_model_that_lacks_any_array_or_has_one_too_many_is_refused() -> None:
    model = model_of(evidence=True)
    arrays, tables = model.network_arrays(), model.table_arrays()
    for name in arrays:
        with pytest.raises(PolicyError):
            model_from({key: arrays[key] for key in arrays if key != name}, tables)
    for name in ("curve-other.edges", "ear.heads", "loose", "before.more"):
        with pytest.raises(PolicyError):
            model_from(arrays | {name: np.zeros(1)}, tables)
