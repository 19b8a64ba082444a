"""adaspec: decides, per step and per request, which drafter speculates and how far.

The names below are imported when they are first used: `import adaspec` loads nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from adaspec.version import __version__ as __version__

if TYPE_CHECKING:
    from adaspec.api import evaluate_policies as evaluate_policies
    from adaspec.api import load_policy as load_policy
    from adaspec.api import train_policy as train_policy
    from adaspec.cost.load import load_cost as load_cost
    from adaspec.errors import AdaspecError as AdaspecError
    from adaspec.evaluate.report import EvaluationReport as EvaluationReport
    from adaspec.policy.protocol import Proposal as Proposal
    from adaspec.trace.importers import import_trace as import_trace
    from adaspec.trace.reader import read_trace as read_trace
    from adaspec.trace.schema import Manifest as Manifest
    from adaspec.trace.schema import Request as Request
    from adaspec.trace.writer import write_trace as write_trace

_MODULES = {
    "AdaspecError": "errors",
    "EvaluationReport": "evaluate.report",
    "Manifest": "trace.schema",
    "Proposal": "policy.protocol",
    "Request": "trace.schema",
    "evaluate_policies": "api",
    "import_trace": "trace.importers",
    "load_cost": "cost.load",
    "load_policy": "api",
    "read_trace": "trace.reader",
    "train_policy": "api",
    "write_trace": "trace.writer",
}
"""The module of every name."""
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        nearest = import_module("adaspec.errors").nearest(name, _MODULES)
        raise AttributeError(f"module 'adaspec' has no attribute {name!r}{nearest}")
    value = getattr(import_module(f"adaspec.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
