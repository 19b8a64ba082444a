"""adaspec: decides, per step and per request, which drafter speculates and how far.

The names below are imported when they are first used: `import adaspec` loads nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "AdaspecError",
    "BasePolicy",
    "EvaluationReport",
    "Manifest",
    "Proposal",
    "Request",
    "evaluate_policies",
    "import_trace",
    "load_cost",
    "load_policy",
    "read_trace",
    "train_policy",
    "write_trace",
]

if TYPE_CHECKING:
    from adaspec.api import evaluate_policies, load_policy, train_policy
    from adaspec.cost.load import load_cost
    from adaspec.errors import AdaspecError
    from adaspec.evaluate.report import EvaluationReport
    from adaspec.policy.base import BasePolicy
    from adaspec.policy.protocol import Proposal
    from adaspec.trace.importers.formats import import_trace
    from adaspec.trace.manifest import Manifest
    from adaspec.trace.reader import read_trace
    from adaspec.trace.schema import Request
    from adaspec.trace.writer import write_trace

_MODULES = {
    "AdaspecError": "errors",
    "BasePolicy": "policy.base",
    "EvaluationReport": "evaluate.report",
    "Manifest": "trace.manifest",
    "Proposal": "policy.protocol",
    "Request": "trace.schema",
    "evaluate_policies": "api",
    "import_trace": "trace.importers.formats",
    "load_cost": "cost.load",
    "load_policy": "api",
    "read_trace": "trace.reader",
    "train_policy": "api",
    "write_trace": "trace.writer",
}
"""The module of every name."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'adaspec' has no attribute {name!r}")
    value = getattr(import_module(f"adaspec.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
