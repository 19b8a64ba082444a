"""A user's own policy class, by name, with its faults reported as its own."""

from __future__ import annotations

import importlib
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaspec.errors import AdaspecError, PolicyFault, SpecError, nearest
from adaspec.policy.base import BasePolicy

_DEFAULTS = BasePolicy()


@dataclass(frozen=True, slots=True, eq=False)
class OwnPolicy:
    """An object that is a policy; the methods that it lacks are those of `BasePolicy`."""

    name: str
    policy: Any

    def ask(self, method: str, fact: object) -> Any:
        """What the policy answers; an exception that it raises is a `PolicyFault`."""
        own = getattr(self.policy, method, None)
        try:
            return getattr(_DEFAULTS, method)(fact) if own is None else own(fact)
        except AdaspecError:
            raise
        except (Exception, SystemExit) as error:
            raise PolicyFault(
                f"policy '{self.name}' failed in {method}: {_reason(error)}"
            ) from error


def own_policy(text: str) -> OwnPolicy:
    """The policy that `python:MODULE:NAME` makes; modules of the working folder count."""
    module_name, _, name = text.partition(":")[2].partition(":")
    if not module_name or not name:
        raise SpecError(f"malformed policy spec '{text}': write python:MODULE:NAME")
    if "" not in sys.path:
        sys.path.insert(0, "")
    module = None
    try:
        module = importlib.import_module(module_name)
        policy = getattr(module, name)()
    except (Exception, SystemExit) as error:
        guess = "" if module is None or hasattr(module, name) else nearest(name, dir(module))
        raise SpecError(
            f"policy '{text}' cannot be made: {_reason(error)}{guess} (MODULE is searched in the "
            "folder you are in first, and NAME must be what takes no arguments)"
        ) from error
    return named_policy(text, policy)


def named_policy(name: str, policy: object) -> OwnPolicy:
    """The policy under this name; a `SpecError` where it decides nothing."""
    if not callable(getattr(policy, "decide", None)):
        raise SpecError(
            f"policy '{name}' is no policy: it has no method 'decide'; "
            "adaspec.policy.protocol.Policy says what a policy has"
        )
    return OwnPolicy(name, policy)


def _reason(error: BaseException) -> str:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    frames_inside = [frame for frame in frames if Path(frame.filename) != Path(__file__)]
    if not frames_inside or frames_inside[-1].lineno is None:
        return what
    return f"{what} ({Path(frames_inside[-1].filename).name}, line {frames_inside[-1].lineno})"
