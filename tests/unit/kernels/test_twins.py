import importlib
import inspect
import pkgutil

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from adaspec import kernels
from adaspec.kernels.layout import TWINS

for each in pkgutil.iter_modules(kernels.__path__):
    importlib.import_module(f"adaspec.kernels.{each.name}")


def test_twins_exist_and_take_the_same_arguments_in_the_same_order():
    for path, device in TWINS.items():
        module, _, name = path.rpartition(".")
        host = getattr(importlib.import_module(f"adaspec.{module}"), name)
        ours = list(inspect.signature(getattr(host, "py_func", host)).parameters)
        theirs = list(inspect.signature(device).parameters)
        common = [each for each in ours if each in theirs]
        assert [each for each in theirs if each in ours] == common, path
