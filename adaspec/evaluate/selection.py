"""Choose the requests that an evaluation replays, and say which were left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from adaspec.errors import EvaluationError, check_word, nearest
from adaspec.evaluate.options import ALL
from adaspec.trace.identity import request_hash
from adaspec.trace.reader import Paths, open_traces
from adaspec.trace.schema import Request

MIN_OUTPUT = 16
MAX_OUTPUT = 2047

UNPAIRED = "unpaired"
TOO_SHORT = "shorter than 16"
EXCLUDED = "excluded"
SEEN = "seen in training"
_WAYS = {
    EXCLUDED: "exclude fewer",
    UNPAIRED: "record or import requests whose neural counts belong to their output",
    TOO_SHORT: f"give outputs of at least {MIN_OUTPUT} tokens",
}
"""What a user can do about requests that were left out."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The conditions for a request to be evaluated."""

    workload: str | None = None
    max_output_tokens: int = MAX_OUTPUT
    exclude: tuple[str, ...] = ()
    """The requests to leave out, as WORKLOAD/ID."""
    exclude_workloads: tuple[str, ...] = ()
    seen: frozenset[str] = frozenset()
    """The content hashes of requests to leave out because a policy was trained on them."""

    def reason_against(self, request: Request, neural: bool) -> str | None:
        """Why a request is left out, or None; `neural` says whether any trace has neural drafts."""
        output, most = len(request.output_tokens), self.max_output_tokens
        if f"{request.workload}/{request.id}" in self.exclude:
            return EXCLUDED
        if neural and not request.paired:
            return UNPAIRED
        if output < MIN_OUTPUT:
            return TOO_SHORT
        if output > most:
            return f"longer than {most}"
        if self.seen and content_hash(request) in self.seen:
            return SEEN
        return None


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen requests, the cap of their neural counts, and what was left out."""

    requests: tuple[Request, ...]
    neural_cap: int
    sources: tuple[str, ...]
    target: str | None
    drafter: str | None
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    """Workload -> reason -> count."""
    warnings: tuple[str, ...] = ()
    unpaired: tuple[Request, ...] = ()
    """Requests that would be chosen, but have no neural counts, or those of another output."""

    @property
    def counts(self) -> dict[str, int]:
        """Requests per workload."""
        return dict(sorted(Counter(r.workload for r in self.requests).items()))


def select(paths: Paths, wanted: Wanted) -> Selection:
    """Read traces and choose the wanted requests."""
    readers = open_traces(paths)
    requests = [request for reader in readers for request in reader.requests()]
    neural = any(reader.manifest.drafter is not None for reader in readers)
    where = ", ".join(str(reader.path) for reader in readers)
    _check_names(requests, wanted, where)
    kept, unpaired = [], []
    left_out: dict[str, Counter[str]] = {}
    for request in requests:
        workload = request.workload
        if wanted.workload not in (None, workload) or workload in wanted.exclude_workloads:
            continue
        reason = wanted.reason_against(request, neural)
        if reason is None:
            kept.append(request)
        else:
            left_out.setdefault(workload, Counter())[reason] += 1
        if reason == UNPAIRED and wanted.reason_against(request, neural=False) is None:
            unpaired.append(request)
    _check_enough(kept, left_out, where)
    manifests = [reader.manifest for reader in readers]
    target = distinct_names(each.target for each in manifests)
    drafter = distinct_names(each.drafter for each in manifests)
    warnings = [warning for reader in readers for warning in reader.warnings]
    for what, names in (("targets", target), ("drafters", drafter)):
        if names is not None and ", " in names:
            warnings.append(
                f"the traces are of several {what} ({names}), whose requests no server runs "
                "together: evaluate them apart"
            )
    caps = [each.neural_cap for each in manifests if each.drafter is not None]
    return Selection(
        requests=tuple(kept),
        neural_cap=min((cap for cap in caps if cap is not None), default=0),
        sources=tuple(str(reader.path) for reader in readers),
        target=target,
        drafter=drafter,
        left_out={name: dict(sorted(n.items())) for name, n in sorted(left_out.items())},
        warnings=tuple(warnings),
        unpaired=tuple(unpaired),
    )


def answered(paths: Paths) -> tuple[Request, ...]:
    """All requests of traces."""
    return tuple(request for reader in open_traces(paths) for request in reader.requests())


def content_hash(request: Request) -> str:
    """A hash of the request's tokens, so that it is the same in every recording of the request."""
    return request_hash(request.prompt_tokens, request.output_tokens)


def _check_enough(kept: list[Request], left_out: dict[str, Counter[str]], where: str) -> None:
    """Refuse a selection of nothing, and a workload of which a policy has seen all."""
    for workload in sorted(left_out.keys() - {request.workload for request in kept}):
        if seen := left_out[workload][SEEN]:
            raise EvaluationError(
                f"workload '{workload}': a policy was trained on {seen} of its requests and none "
                "is left to judge it by: give other requests, or add --include-training"
            )
    if not kept:
        total: Counter[str] = sum(left_out.values(), Counter())
        reasons = "; ".join(f"{n} {why}" for why, n in total.items())
        ways = [_WAYS.get(reason, "raise --max-output-tokens") for reason in sorted(total)]
        raise EvaluationError(
            f"{where}: no request is left to replay ({reasons or 'there is none of a workload'}): "
            f"{', or '.join(ways) or 'record or import some, or exclude fewer workloads'}"
        )


def _check_names(requests: Sequence[Request], wanted: Wanted, where: str) -> None:
    """Refuse a workload, or a request to leave out, that no request has."""
    workloads = sorted({request.workload for request in requests})
    if ALL in workloads:
        raise EvaluationError(
            f"{where}: a workload is called '{ALL}', as reports call the mix: give it another name"
        )
    named = () if wanted.workload is None else (wanted.workload,)
    for name in (*named, *wanted.exclude_workloads):
        check_word(name, workloads, f"{where}: workload", EvaluationError)
    names = {f"{request.workload}/{request.id}" for request in requests}
    for name in wanted.exclude:
        if name not in names:
            raise EvaluationError(
                f"{where}: no request '{name}' to exclude{nearest(name, names)} (write WORKLOAD/ID)"
            )


def distinct_names(values: Iterable[str | None]) -> str | None:
    """The distinct values that are known, in one line."""
    return ", ".join(sorted({value for value in values if value is not None})) or None
