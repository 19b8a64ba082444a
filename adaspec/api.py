"""The Python API to train, load and evaluate policies; it imports what loads slowly when needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from adaspec.cost.load import DEFAULT, load_cost
from adaspec.cost.model import CostModel
from adaspec.errors import AdaspecError, nearest
from adaspec.evaluate.options import Options, Progress, silent
from adaspec.evaluate.selection import MAX_OUTPUT, Wanted, answered, select
from adaspec.files import AnyPath
from adaspec.trace.reader import Paths, paths_of

if TYPE_CHECKING:
    from adaspec.evaluate.report import EvaluationReport
    from adaspec.policy.protocol import Policy
    from adaspec.replay.player import Contender
    from adaspec.train.recipe import Product
    from adaspec.train.trainer import Spread

AnyPolicy: TypeAlias = "AnyPath | Policy | Contender"
AnyCost: TypeAlias = AnyPath | CostModel


def load_policy(folder_or_spec: AnyPolicy) -> Contender:
    """Load the policy in a folder, a shipped one by its name, or the one that a spec describes."""
    from adaspec.replay.contender import contender_of

    return contender_of(folder_or_spec)


def evaluate_policies(
    traces: Paths,
    policies: AnyPolicy | Iterable[AnyPolicy] = (),
    *,
    cost: AnyCost | None = None,
    workload: str | None = None,
    max_output_tokens: int = MAX_OUTPUT,
    exclude_requests: str | Iterable[str] = (),
    include_training: bool = False,
    warm: Paths = (),
    progress: Progress = silent,
    **options: Any,
) -> EvaluationReport:
    """Evaluate policies on traces, beside all baselines and bounds, as `adaspec eval` does.

    Without `cost`, steps are charged as on one H100. Answers of traces `warm` were given before.
    `options` are the fields of `Options`: concurrency, engine, seed and more.
    """
    from adaspec.evaluate.evaluation import evaluate, seen_in_training
    from adaspec.evaluate.report import EvaluationReport

    how = _options(options)
    named = _contenders(policies)
    wanted = Wanted(
        workload,
        max_output_tokens,
        _texts(exclude_requests),
        seen=frozenset() if include_training else seen_in_training(named),
    )
    model = _cost(cost)
    before = answered(warm) if warm else ()
    return EvaluationReport(evaluate(select(traces, wanted), named, model, how, progress, before))


def train_policy(
    traces: Paths,
    folder: AnyPath,
    *,
    cost: AnyCost | None = None,
    exclude_workloads: str | Iterable[str] = (),
    exclude_requests: str | Iterable[str] = (),
    general: bool = False,
    spread: Spread | None = None,
    force: bool = False,
    progress: Progress = silent,
    **options: Any,
) -> Product:
    """Train a policy on traces and write its folder: `adaspec train`.

    A `general` policy knows no vocabulary, and may learn from traces of several models. `options`
    are the fields of `Options`; `concurrency` has the loads to train for, too. The result has the
    `policy`, its `manifest`, and the `report` that judges it.
    """
    from adaspec.train import recipe

    return recipe.train_policy(
        paths_of(traces),
        paths_of(folder)[0],
        _cost(cost),
        _options(options),
        Wanted(exclude=_texts(exclude_requests), exclude_workloads=_texts(exclude_workloads)),
        general,
        spread,
        force,
        progress,
    )


def _contenders(policies: AnyPolicy | Iterable[AnyPolicy]) -> list[Contender]:
    is_list = isinstance(policies, Iterable) and not isinstance(policies, str)
    given: list[Any] = list(policies) if is_list else [policies]  # type: ignore[arg-type]
    # A policy counts once, even if its spec or the same object is given twice.
    distinct = {policy if isinstance(policy, str) else id(policy): policy for policy in given}
    return [load_policy(policy) for policy in distinct.values()]


def _options(given: dict[str, Any]) -> Options:
    known = [each.name for each in dataclasses.fields(Options)]
    for name in given.keys() - {*known}:
        raise AdaspecError(f"there is no option '{name}'{nearest(name, known)}")
    return Options(**given)


def _texts(texts: str | Iterable[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _cost(cost: AnyCost | None) -> CostModel:
    return cost if isinstance(cost, CostModel) else load_cost(DEFAULT if cost is None else cost)
