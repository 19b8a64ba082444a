"""A whole evaluation: traces, policies and costs in; the report's document out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adaspec import __version__
from adaspec.cost.model import CostModel
from adaspec.errors import EvaluationError
from adaspec.evaluate.closed_loop import evaluate_closed_loop
from adaspec.evaluate.lockstep import evaluate_lockstep
from adaspec.evaluate.options import Options, Progress, silent
from adaspec.evaluate.protocol import evaluate_protocol
from adaspec.evaluate.selection import Selection
from adaspec.policy.spec import DEFAULTS
from adaspec.replay.contender import Contender, Player
from adaspec.replay.oracles import Oracle
from adaspec.replay.tape import build_tape

REPORT_SCHEMA = 1
CLOSED_LOOP, LOCKSTEP = "closed-loop", "lockstep"
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
    if not named:
        raise EvaluationError(f"--protocol {protocol} runs the named policies: name one")
    found = evaluate_protocol(selection, named, options, progress)
    return _document(selection, named, options, protocol, LOCKSTEP, protocol) | found


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
        "defaults": DEFAULTS,
        "notes": list(_notes(selection, options)),
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


def _notes(selection: Selection, options: Options) -> Sequence[str]:
    notes = list(selection.warnings)
    if selection.synthetic:
        notes.append(
            "the traces are synthetic: figures show how adaspec reports, not what it gains"
        )
    if not selection.neural_cap:
        notes.append("the traces hold no neural drafts: only n-gram settings were replayed")
    if options.stress_splices:
        notes.append("splices behind wrong drafts are charged their full allowed length")
    return notes
