"""Whatever can be named in an evaluation: policies, and what only replays know."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from adaspec.errors import GONE, EvaluationError, SpecError, nearest
from adaspec.policy.artifact import CHECKSUMS, NETWORK, shipped_policies
from adaspec.policy.protocol import LearnedPolicy, load_policy
from adaspec.policy.static import FIRST_WORDS, check_legible, parse_policy
from adaspec.replay.oracles import ORACLES, Oracle
from adaspec.replay.own import named_policy, own_policy
from adaspec.replay.player import Contender
from adaspec.replay.suffix import HEAD, parse_suffix


def parse_contender(text: str) -> Contender:
    """A spec, a trained policy's folder or shipped name, or what only replays know.

    That is `oracle:KIND`, `suffix:FACTOR:PROB`, and `python:MODULE:NAME` for a class of one's own.
    """
    check_legible(text)
    head = text.partition(":")[0]
    if head in _REPLAYED_ONLY:
        return _REPLAYED_ONLY[head](text)
    if head in FIRST_WORDS:
        return parse_policy(text)
    # Sound or not, a trained policy's folder has one of these files, and a trace has neither.
    has_policy = any(_exists(Path(text) / name) for name in (CHECKSUMS, NETWORK))
    if has_policy or text in shipped_policies():
        return _loaded(text)
    _refuse_path(text)
    return parse_policy(text)


def check_distinct(named: Sequence[Contender]) -> None:
    """Refuse policies with the same name, because their rows could not be told apart."""
    names = Counter(contender.name for contender in named)
    for contender in named:
        if names[contender.name] > 1:
            why = ", as their folders are" if isinstance(contender, LearnedPolicy) else ""
            raise EvaluationError(f"two policies are called '{contender.name}'{why}: rename one")


def contender_of(given: object) -> Contender:
    """The contender that is given as a spec, a policy's folder, or an object that is a policy.

    An object of a class of one's own goes by its `name`, or else by its class's.
    """
    if isinstance(given, str):
        return parse_contender(given)
    if isinstance(given, os.PathLike):
        return _loaded(Path(given))
    if isinstance(given, Contender):
        return given
    if isinstance(given, type):
        raise SpecError(f"policy {given.__name__} is a class: give an object, {given.__name__}()")
    name = str(getattr(given, "name", type(given).__name__))
    check_legible(name)
    _check_name(name, f"{type(given).__name__} object")
    return named_policy(name, given)


def _parse_oracle(text: str) -> Oracle:
    kind = text.partition(":")[2]
    if kind in GONE:
        raise SpecError(f"policy spec '{text}'{nearest(kind, ORACLES)}")
    if kind not in ORACLES:
        raise SpecError(
            f"unknown oracle '{text}'{nearest(kind, ORACLES) or '.'} "
            f"Known: {', '.join('oracle:' + kind for kind in ORACLES)}"
        )
    return Oracle(kind)


_REPLAYED_ONLY: dict[str, Callable[[str], Contender]] = {
    "oracle": _parse_oracle,
    "python": own_policy,
    HEAD: parse_suffix,
}
"""How the specs are parsed that only replays know, by what they begin with."""
_RESERVED = FIRST_WORDS | set(_REPLAYED_ONLY) | {"static", "vllm", "crossfit"}
"""What the rows of a report begin with that are no trained policy's."""


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no name that a file could have
        return False


def _loaded(folder: str | Path) -> LearnedPolicy:
    """A trained policy, whose name means nothing else in a report."""
    policy = load_policy(folder)
    _check_name(policy.name, str(folder))
    return policy


def _check_name(name: str, text: str) -> None:
    if name.partition(":")[0] in _RESERVED or not name:
        raise SpecError(
            f"'{text}': reports would call this policy '{name}', which means something else "
            "there: rename it"
        )


def _refuse_path(text: str) -> None:
    advice = "give a policy spec, or the folder of a trained policy"
    if not text.strip():
        raise SpecError(f"the policy spec is empty: {advice}")
    if _exists(Path(text)):
        raise SpecError(f"'{text}' is not the folder of a trained policy: {advice}")
    if "/" in text:
        raise SpecError(f"'{text}': there is no such folder: {advice}")
    close = nearest(text, shipped_policies())
    if close:
        raise SpecError(f"'{text}' is neither a policy spec nor a shipped policy{close}")
