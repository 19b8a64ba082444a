"""A whole evaluation: traces, policies and costs in; the report's document out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adaspec import __version__
from adaspec.arguments import one_of
from adaspec.cost.builtin import PROTOCOL
from adaspec.cost.model import CostModel
from adaspec.errors import EvaluationError
from adaspec.evaluate.closed_loop import ALL, evaluate_closed_loop
from adaspec.evaluate.lockstep import evaluate_lockstep
from adaspec.evaluate.options import Options, Progress, silent
from adaspec.evaluate.protocol import evaluate_protocol
from adaspec.evaluate.selection import Selection, content_hash
from adaspec.evaluate.tuned import tuned_rows
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.spec import KINDS
from adaspec.replay.contender import Contender, Player
from adaspec.replay.oracles import Oracle
from adaspec.replay.tape import build_tape

REPORT_SCHEMA = 1
CLOSED_LOOP, LOCKSTEP = "closed-loop", "lockstep"
_FIXED_BY_PROTOCOL = (
    "cost",
    "batching",
    "prefill",
    "max_output_tokens",
    "charge_decisions",
    "stress_splices",
    "orders",
    "resamples",
    "cap",
    "keep_alive",
)
BATCHINGS = {CLOSED_LOOP: evaluate_closed_loop, LOCKSTEP: evaluate_lockstep}


def evaluate(
    selection: Selection,
    named: Sequence[Contender],
    cost: CostModel,
    options: Options,
    batching: str = CLOSED_LOOP,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The report of the design's section 8."""
    one_of(batching, BATCHINGS, "batching", EvaluationError)
    check_distinct(named)
    progress("looking up", 0, 1)
    tape = build_tape(selection.requests, selection.neural_cap)
    if options.prefill:
        tape = tape.with_prefill(cost)
    if options.stress_splices:
        tape = tape.with_stressed_splices()
    progress("looking up", 1, 1)
    charged = [c for c in named if options.charge_decisions and not isinstance(c, Oracle)]
    player = Player(tape, cost, options.cap, charged)
    found = BATCHINGS[batching](player, named, options, progress)
    _mark_seen(found["rows"], selection, named)
    document = _document(selection, named, options, cost.name, batching, None)
    document["notes"] += [
        f"workload '{workload}' has one request, which says nothing of others: no intervals there "
        "nor for the mix"
        for workload, count in selection.counts.items()
        if count == 1
    ]
    return document | found


def evaluate_by_protocol(
    selection: Selection,
    named: Sequence[Contender],
    protocol: str,
    options: Options,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The same document for a protocol, which brings its own costs and batching."""
    one_of(protocol, [PROTOCOL], "protocol", EvaluationError)
    if not named:
        raise EvaluationError(f"--protocol {protocol} runs the named policies: name one")
    check_distinct(named)
    found = evaluate_protocol(selection, named, options, progress)
    _mark_seen(found["rows"], selection, named)
    return _document(selection, named, options, protocol, LOCKSTEP, protocol) | found


def refuse_beside(protocol: str, given: Mapping[str, object]) -> None:
    """Refuse what was given of that which a protocol fixes, and would ignore."""
    for name in _FIXED_BY_PROTOCOL:
        agrees = (name, given.get(name)) in (("cost", protocol), ("batching", LOCKSTEP))
        if name in given and not agrees:
            raise EvaluationError(
                f"--protocol {protocol} fixes what --{name.replace('_', '-')} would: "
                "leave one of the two out"
            )


def _document(
    selection: Selection,
    named: Sequence[Contender],
    options: Options,
    cost: str,
    batching: str,
    protocol: str | None,
) -> dict[str, Any]:
    document = {
        "schema": REPORT_SCHEMA,
        "adaspec": __version__,
        "cost": cost,
        "batching": batching,
        "protocol": protocol,
        "traces": {
            "sources": list(selection.sources),
            "target": selection.target,
            "drafter": selection.drafter,
            "synthetic": selection.synthetic,
            "requests": selection.counts,
            "left_out": selection.left_out,
        },
        "policies": [contender.name for contender in named],
        "seed": options.seed,
        "defaults": {head: kind.default for head, kind in KINDS.items()},
        "notes": list(_notes(selection, named, options)),
    }
    if protocol is None:
        document |= {
            "orders": options.orders,
            "resamples": options.resamples,
            "cap": options.cap,
            "prefill": options.prefill,
            "charge_decisions": options.charge_decisions,
            "stress_splices": options.stress_splices,
        }
    return document


def _notes(selection: Selection, named: Sequence[Contender], options: Options) -> Sequence[str]:
    notes: list[str] = list(selection.warnings)
    if selection.synthetic:
        notes.append(
            "the traces are synthetic: figures show how adaspec reports, not what it gains"
        )
    if not selection.neural_cap:
        notes.append("the traces hold no neural drafts: only n-gram settings were replayed")
    if options.stress_splices:
        notes.append("splices behind wrong drafts are charged their full allowed length")
    return [*notes, *_strangers(selection, named)]


def _strangers(selection: Selection, named: Sequence[Contender]) -> Iterator[str]:
    """Policies that were made for something else than what the traces recorded."""
    for policy in named:
        if not isinstance(policy, LearnedPolicy) or policy.manifest is None:
            continue
        for what in ("target", "drafter"):
            mine, theirs = getattr(policy.manifest, what), getattr(selection, what)
            if mine is not None and theirs is not None and mine != theirs:
                yield f"policy '{policy.name}' was trained for the {what} {mine}, not {theirs}"


def seen_in_training(named: Sequence[Contender]) -> frozenset[str]:
    """Content hashes of every request that a named policy was trained on."""
    return frozenset().union(*(_trained_on(policy) for policy in named))


def check_distinct(named: Sequence[Contender]) -> None:
    """Refuse two policies whose rows would go by the same name."""
    names = Counter(contender.name for contender in named)
    for contender in named:
        if names[contender.name] > 1:
            why = ", as their folders are" if isinstance(contender, LearnedPolicy) else ""
            raise EvaluationError(f"two policies are called '{contender.name}'{why}: rename one")


def _trained_on(policy: Contender) -> frozenset[str]:
    if not isinstance(policy, LearnedPolicy) or policy.manifest is None:
        return frozenset()
    return frozenset(policy.manifest.training_requests)


def _mark_seen(
    rows: Sequence[dict[str, Any]], selection: Selection, named: Sequence[Contender]
) -> None:
    """Mark every row whose policy, or tuned rule, had seen some of the row's requests."""
    tuned = tuned_rows(named)
    touched: dict[str, set[str]] = {}
    for policy in named:
        trained_on = _trained_on(policy)
        if not trained_on:
            continue
        workloads = {r.workload for r in selection.requests if content_hash(r) in trained_on}
        for name in (policy.name, tuned.get(policy.name, policy.name)):
            touched[name] = workloads | {ALL} if workloads else set()
    for row in rows:
        if row["workload"] in touched.get(row["policy"], ()):
            row["detail"]["seen_in_training"] = True
