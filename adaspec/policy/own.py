"""A user's own policy class, by name, with its faults reported as its own."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from adaspec.errors import AdaspecError, PolicyFault, SpecError, nearest
from adaspec.policy.base import BasePolicy
from adaspec.policy.protocol import Batch, Proposal, Report, Setup

_DEFAULTS = BasePolicy()


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
    return guarded(text, policy)


def guarded(name: str, policy: Any) -> OwnPolicy:
    """The policy under this name, its faults as its own; a `SpecError` where it decides nothing."""
    if not callable(getattr(policy, "decide", None)):
        raise SpecError(
            f"policy '{name}' is no policy: it has no method 'decide'; "
            "adaspec.policy.protocol.Policy says what a policy has"
        )
    return OwnPolicy(name, policy)


class OwnPolicy:
    """Calls a policy; an exception that it raises is a `PolicyFault`.

    What the policy lacks is answered as by `BasePolicy`.
    """

    def __init__(self, name: str, policy: Any) -> None:
        self.name = name
        self._policy = policy

    def start(self, setup: Setup) -> None:
        """Pass it on."""
        self._call("start", setup)

    def holds_drafter(self, load: int) -> bool:
        """Its answer, if that is a truth value."""
        answer = self._call("holds_drafter", load)
        if not isinstance(answer, bool | np.bool_):
            raise PolicyFault(
                f"policy '{self.name}' answers holds_drafter with {answer!r:.80}: True or False is "
                "expected"
            )
        return bool(answer)

    def forwards(self, batch: Batch) -> int:
        """Its answer, which whoever asks checks."""
        answer: int = self._call("forwards", batch)
        return answer

    def decide(self, batch: Batch) -> Proposal:
        """Its answer, which whoever asks checks."""
        answer: Proposal = self._call("decide", batch)
        return answer

    def learn(self, report: Report) -> None:
        """Pass it on."""
        self._call("learn", report)

    def _call(self, method: str, fact: object) -> Any:
        own = getattr(self._policy, method, None)
        try:
            return getattr(_DEFAULTS, method)(fact) if own is None else own(fact)
        except AdaspecError:
            raise
        except (Exception, SystemExit) as error:
            raise PolicyFault(
                f"policy '{self.name}' failed in {method}: {_reason(error)}"
            ) from error


def _reason(error: BaseException) -> str:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    frames_inside = [frame for frame in frames if Path(frame.filename) != Path(__file__)]
    if not frames_inside or frames_inside[-1].lineno is None:
        return what
    return f"{what} ({Path(frames_inside[-1].filename).name}, line {frames_inside[-1].lineno})"
