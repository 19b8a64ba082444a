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
from adaspec.policy.protocol import Batch, Policy, Proposal, Report, Setup

_DEFAULTS = BasePolicy()
_LEAST, _MOST = np.iinfo(np.int32).min, np.iinfo(np.int32).max


def own_policy(text: str) -> Policy:
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


def guarded(name: str, policy: Any) -> Policy:
    """The policy under this name, its answers checked; a `SpecError` where it decides nothing."""
    if not callable(getattr(policy, "decide", None)):
        raise SpecError(
            f"policy '{name}' is no policy: it has no method 'decide'; "
            "adaspec.policy.protocol.Policy says what a policy has"
        )
    return OwnPolicy(name, policy)


class OwnPolicy:
    """Calls a policy; an exception or an answer of the wrong kind is a `PolicyFault`.

    What the policy lacks is answered as by `BasePolicy`.
    """

    def __init__(self, name: str, policy: Any) -> None:
        self.name = name
        self.stops_early = bool(getattr(policy, "stops_early", False))
        self._policy = policy

    def start(self, setup: Setup) -> None:
        """Pass it on."""
        self._call("start", setup)

    def holds_drafter(self, load: int) -> bool:
        """Its answer, if that is a truth value."""
        answer = self._call("holds_drafter", load)
        if not isinstance(answer, bool | np.bool_):
            raise self._wrong("holds_drafter", answer, "True or False")
        return bool(answer)

    def forwards(self, batch: Batch) -> int:
        """Its answer, if that is a whole number."""
        answer = self._call("forwards", batch)
        if isinstance(answer, bool | np.bool_) or not isinstance(answer, int | np.integer):
            raise self._wrong("forwards", answer, "a whole number")
        return int(answer)

    def decide(self, batch: Batch) -> Proposal:
        """Its answer, if that is a `Proposal` of whole numbers."""
        answer = self._call("decide", batch)
        if not isinstance(answer, Proposal):
            raise self._wrong("decide", answer, "a Proposal")
        for field in ("neural_len", "ngram_len", "ngram_start"):
            values = getattr(answer, field)
            if values is None and field == "ngram_start":
                continue
            kind = getattr(values, "dtype", None)
            if kind is None or not np.issubdtype(kind, np.integer):
                shown = type(values).__name__ if kind is None else f"an array of {kind}"
                raise PolicyFault(
                    f"policy '{self.name}' answers decide with {field} as {shown}: "
                    "an array of whole numbers is expected, one per row"
                )
            # Beyond 32 bits the replay would wrap it round to something legal.
            if values.min(initial=0) < _LEAST or values.max(initial=0) > _MOST:
                raise self._wrong("decide", values, f"{field} of at most 32 bits")
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

    def _wrong(self, method: str, answer: object, expected: str) -> PolicyFault:
        return PolicyFault(
            f"policy '{self.name}' answers {method} with {answer!r:.80}: {expected} is expected"
        )


def _reason(error: BaseException) -> str:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    frames_inside = [frame for frame in frames if Path(frame.filename) != Path(__file__)]
    if not frames_inside or frames_inside[-1].lineno is None:
        return what
    return f"{what} ({Path(frames_inside[-1].filename).name}, line {frames_inside[-1].lineno})"
