"""Which requests of which traces an evaluation replays, and what was left out and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from adaspec.arguments import Paths
from adaspec.errors import EvaluationError, nearest
from adaspec.trace.identity import request_hash
from adaspec.trace.reader import TraceReader, open_traces
from adaspec.trace.schema import Request

MIN_OUTPUT = 16
MAX_OUTPUT = 2047

UNPAIRED = "unpaired"
SHORT = "shorter than 16"
EXCLUDED = "excluded"
SEEN = "seen in training"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller asks for."""

    workload: str | None = None
    max_output_tokens: int | None = MAX_OUTPUT
    exclude: tuple[str, ...] = ()
    """Requests as WORKLOAD/ID."""
    filtered: bool = True
    """Whether length and pairing matter; the protocol takes everything."""
    seen: frozenset[str] = frozenset()
    """Content hashes of requests that a policy to be judged was trained on: they are left out."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The requests, the cap of their neural counts, and what was left out."""

    requests: tuple[Request, ...]
    neural_cap: int
    sources: tuple[str, ...]
    target: str | None
    drafter: str | None
    synthetic: bool
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    """Workload to reason to count."""
    warnings: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Requests per workload."""
        return dict(sorted(Counter(r.workload for r in self.requests).items()))


def select(paths: Paths, wanted: Wanted) -> Selection:
    """Read dense traces and keep what can be replayed as asked."""
    readers = open_traces(paths)
    for reader in readers:
        if reader.manifest.kind != "dense":
            raise EvaluationError(
                f"{reader.path}: is a {reader.manifest.kind} trace, which knows only what was "
                "tried: eval needs a dense one (see docs/train-on-your-traffic.md)"
            )
    everything = [(r, reader) for reader in readers for r in reader.requests()]
    _check_names(everything, wanted, readers)
    neural = [reader for reader in readers if reader.manifest.drafter is not None]
    caps = [reader.manifest.neural_cap for reader in neural]
    neural_cap = min((cap for cap in caps if cap is not None), default=0)
    longest = wanted.max_output_tokens
    too_long = f"longer than {longest}"
    left_out: dict[str, Counter[str]] = {}
    kept = []
    for request, _ in everything:
        if wanted.workload is not None and request.workload != wanted.workload:
            continue
        output = len(request.output_tokens)
        why = None
        if f"{request.workload}/{request.id}" in wanted.exclude:
            why = EXCLUDED
        elif wanted.filtered and neural and not request.paired:
            why = UNPAIRED
        elif wanted.filtered and output < MIN_OUTPUT:
            why = SHORT
        elif wanted.filtered and longest is not None and output > longest:
            why = too_long
        elif wanted.seen and content_hash(request) in wanted.seen:
            why = SEEN
        if why is None:
            kept.append(request)
        else:
            left_out.setdefault(request.workload, Counter())[why] += 1
    _check_held_out(kept, left_out)
    if not kept:
        total: Counter[str] = sum(left_out.values(), Counter())
        reasons = "; ".join(f"{n} {why}" for why, n in total.items())
        raise EvaluationError(
            f"{', '.join(str(reader.path) for reader in readers)}: no request is left to replay "
            f"({reasons or 'none was recorded'}){_mend(set(total))}"
        )
    return Selection(
        requests=tuple(kept),
        neural_cap=neural_cap,
        sources=tuple(str(reader.path) for reader in readers),
        target=_common([reader.manifest.target for reader in readers]),
        drafter=_common([reader.manifest.drafter for reader in neural]),
        synthetic=any(reader.manifest.synthetic for reader in readers),
        left_out={name: dict(sorted(n.items())) for name, n in sorted(left_out.items())},
        warnings=tuple(warning for reader in readers for warning in reader.warnings),
    )


def content_hash(request: Request) -> str:
    """What makes the request the same wherever it was recorded."""
    return request_hash(request.prompt_tokens, request.output_tokens)


def _check_held_out(kept: list[Request], left_out: dict[str, Counter[str]]) -> None:
    for workload in sorted(left_out.keys() - {request.workload for request in kept}):
        seen = left_out[workload][SEEN]
        if seen:
            raise EvaluationError(
                f"workload '{workload}': a policy was trained on {seen} of its requests and none "
                "is left to judge it by: give requests that it never saw, or add "
                "--include-training, which marks the rows"
            )


def _check_names(
    everything: list[tuple[Request, TraceReader]], wanted: Wanted, readers: list[TraceReader]
) -> None:
    where = ", ".join(str(reader.path) for reader in readers)
    workloads = sorted({request.workload for request, _ in everything})
    if wanted.workload is not None and wanted.workload not in workloads:
        raise EvaluationError(
            f"{where}: no workload '{wanted.workload}'{nearest(wanted.workload, workloads)} "
            f"(has: {', '.join(workloads) or 'none'})"
        )
    names = {f"{request.workload}/{request.id}" for request, _ in everything}
    for name in wanted.exclude:
        if name not in names:
            raise EvaluationError(
                f"{where}: no request '{name}' to exclude{nearest(name, names)} (write WORKLOAD/ID)"
            )


def _mend(reasons: set[str]) -> str:
    """What to do about requests that were left out."""
    ways = {
        EXCLUDED: "exclude fewer",
        UNPAIRED: "record or import requests whose neural counts belong to their output",
        SHORT: f"give outputs of at least {MIN_OUTPUT} tokens",
    }
    found = [ways.get(reason, "raise --max-output-tokens") for reason in sorted(reasons)]
    return f": {', or '.join(found)}" if found else ": record or import some"


def _common(values: list[str | None]) -> str | None:
    found = sorted({value for value in values if value is not None})
    return ", ".join(found) or None
