"""Every host function of a row's path has a device function that means it, and says so."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from adaspec import kernels
from adaspec.kernels.twins import TWINS
from adaspec.policy import choice
from adaspec.predict import features, network, prediction, survival, tables

for each in pkgutil.iter_modules(kernels.__path__):
    importlib.import_module(f"adaspec.kernels.{each.name}")

OF_A_ROW = (choice, features, network, prediction, survival, tables)
NOT_OF_A_STEP = {
    *("choice.new_curves", "choice.no_settings", "choice.shapes_of"),
    *("network.constant_network", "network.network_from"),
    *("survival.curves_from", "survival.no_curves"),
    *("tables.from_arrays", "tables.make_tables", "tables.no_tables", "tables.to_arrays"),
}
"""What loads, stores or trains a model, or makes room."""
INSIDE = {"network.rises": "network.predict", "tables.salted": "tables.level_keys"}
"""A part of a function -> the function, where one device function means both."""


def functions_of(module: ModuleType) -> dict[str, object]:
    found = vars(module).items()
    short = module.__name__.removeprefix("adaspec.")
    return {
        f"{short}.{name}": value
        for name, value in found
        if not name.startswith("_")
        and (inspect.isfunction(value) or hasattr(value, "py_func"))
        and value.__module__ == module.__name__
    }


def test_every_function_of_a_rows_path_has_a_twin() -> None:
    for module in OF_A_ROW:
        for path in functions_of(module):
            name = path.partition(".")[2]
            if name not in NOT_OF_A_STEP and name not in INSIDE:
                assert path in TWINS, f"no kernel says that it means {path}"


def test_twins_exist_and_take_the_same_arguments_in_the_same_order() -> None:
    for path, device in TWINS.items():
        module, _, name = path.rpartition(".")
        host = getattr(importlib.import_module(f"adaspec.{module}"), name)
        ours = list(inspect.signature(getattr(host, "py_func", host)).parameters)
        theirs = list(inspect.signature(device).parameters)
        common = [each for each in ours if each in theirs]
        assert [each for each in theirs if each in ours] == common, path
