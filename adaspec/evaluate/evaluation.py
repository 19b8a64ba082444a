"""Evaluate policies: make the report's document from requests, policies and costs.

In a closed loop a fixed number of requests runs at once, in shuffled orders; in an open one they
come by themselves. The best settings are searched for in the runs of every cell; they, the named
policies and the bounds then run once more for their rows, and over resampled requests for the
intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adaspec.cost import ASYNC
from adaspec.cost.load import BUILTIN
from adaspec.cost.model import CostModel, check_bound
from adaspec.draft.matches import RING_TOKENS, ring_of
from adaspec.evaluate.cell_result import CellResult, average, measure, new_results
from adaspec.evaluate.hindsight import STATIC_BY_LOAD, best_by_load, hindsight
from adaspec.evaluate.intervals import replicate_speeds, variance_ratio
from adaspec.evaluate.options import ALL, MAX_SEED, REPORT_SCHEMA, Cell, Options, Progress, silent
from adaspec.evaluate.selection import Selection, content_hash
from adaspec.evaluate.traffic import Arrivals, parse_arrivals, pools_of, runs_of
from adaspec.policy.protocol import LearnedPolicy
from adaspec.replay.contender import check_distinct
from adaspec.replay.player import Contender, Player
from adaspec.replay.recording import build_recording
from adaspec.trace.identity import Dialogues
from adaspec.trace.schema import Request
from adaspec.version import __version__

_ASYNC_NOTE = (
    "as in an async engine: forwards and how much is verified are decided before the last outcomes "
    "are known; a static rule runs all its forwards and verifies its longest draft in every step; "
    "budgets and oracles know all, as in a sync engine"
)


def evaluate(
    selection: Selection,
    named: Sequence[Contender],
    cost: CostModel,
    options: Options,
    progress: Progress = silent,
    warm: Sequence[Request] = (),
) -> dict[str, Any]:
    """The report's document, as `report.json` holds it.

    `warm` are requests that had been answered before: whatever copies finds the last of their
    answers in the ring, and suffix decoding remembers all.
    """
    before = _answered_before(warm, selection.requests, options.seed)
    player = _player(selection, named, cost, options, progress, before)
    results, tried = evaluate_loop(player, named, options, progress)
    document = _document(selection, named, cost, options, results, tried)
    _mark_seen(document["rows"], selection, named)
    if warm:
        more = len(warm) - len(before)
        left_out = f" ({more} more given are evaluated here, or later turns of these)"
        document["warm"] = len(before)
        document["notes"].append(
            f"warm: {len(before)} other requests had been answered{left_out if more else ''}; "
            f"whatever copies finds the last {RING_TOKENS:,} tokens of these answers in the ring, "
            "and nothing of this run's"
        )
    document["notes"] += _few_notes(selection, options)
    return document


def evaluate_folds(
    selection: Selection,
    folds: Sequence[tuple[Selection, Contender]],
    cost: CostModel,
    options: Options,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The document of a cross-fit: the mean over folds, each replayed alone with its own policy.

    All policies go by one name. Rivals have the best setting of each fold, too.
    """
    found: dict[Cell, list[CellResult]] = {}
    tried = 0
    for number, (part, policy) in enumerate(folds):

        def told(stage: str, done: float, total: float, at: int = number + 1) -> None:
            progress(f"fold {at} of {len(folds)}: {stage}", done, total)

        own = replace(options, seed=(options.seed + number) % MAX_SEED)
        player = _player(part, [policy], cost, own, told)
        results, count = evaluate_loop(player, [policy], own, told)
        tried += count
        for cell, result in results.items():
            found.setdefault(cell, []).append(result)
    results = {cell: average(each) for cell, each in found.items()}
    document = _document(selection, [folds[0][1]], cost, options, results, tried)
    document["notes"] += (f"in a fold, {note}" for note in _few_notes(folds[-1][0], options))
    return document


def _few_notes(selection: Selection, options: Options) -> Iterator[str]:
    """Where a workload has too few requests for its figures to say much."""
    for workload, count in selection.counts.items():
        if count == 1:
            yield f"workload '{workload}' has one request: no intervals there nor for the mix"
    most = max(options.concurrency) if options.arrivals is None else 1
    few = [f"{name} {count}" for name, count in selection.counts.items() if count < most]
    if few:
        yield f"at concurrency {most} copies of a request run side by side: {', '.join(few)}"


def _player(
    selection: Selection,
    named: Sequence[Contender],
    cost: CostModel,
    options: Options,
    progress: Progress,
    before: Sequence[Request] = (),
) -> Player:
    """What replays these requests; refuses what it cannot replay."""
    check_distinct(named)
    _arrivals(options)  # so that it is refused before all else
    charged = cost.without_deciding() if options.free_decisions else cost
    if options.max_step_ms is not None:
        check_bound(options.max_step_ms, charged)
    progress("looking up", 0, 1)
    ring = ring_of(each.output_tokens for each in before) if before else None
    recording = build_recording(selection.requests, selection.neural_cap, ring)
    if options.prefill:
        recording = recording.with_prefill()
    progress("looking up", 1, 1)
    player = Player(recording, charged, options.cap, options.engine, before, options.longest_s)
    for contender in named:
        player.check(contender)
    return player


def _answered_before(
    warm: Sequence[Request], requests: Sequence[Request], seed: int
) -> list[Request]:
    """Those of `warm`, mixed, that answer none of the requests, nor a later turn of them."""
    own, dialogues = {each.output_tokens.tobytes() for each in requests}, Dialogues(requests)
    others = [
        each
        for each in warm
        if each.output_tokens.tobytes() not in own
        and next(dialogues.earlier_turns(each), None) is None
    ]
    order = np.random.default_rng([seed, len(others)]).permutation(len(others))
    return [others[at] for at in order.tolist()]


def evaluate_loop(
    player: Player, named: Sequence[Contender], options: Options, progress: Progress
) -> tuple[dict[Cell, CellResult], int]:
    """What each cell's replays come to, and how many settings were run to find the rivals."""
    recording, arrivals = player.recording, _arrivals(options)
    # One workload alone is its own mix, and not replayed again.
    names = (None, *recording.workloads) if len(recording.workloads) > 1 else (None,)
    cells: list[Cell] = [(name, load) for name in names for load in options.concurrency]
    if arrivals is not None:
        cells = [(None, options.max_num_seqs)]
    runs = {cell: runs_of(recording, cell, options, arrivals) for cell in cells}
    winners, tried = hindsight(player, runs, options, progress)
    if arrivals is not None:
        by_load = best_by_load(player, options)
        winners = {cell: best | {STATIC_BY_LOAD: by_load} for cell, best in winners.items()}
    results = new_results(player, named, winners)
    for done, (cell, result) in enumerate(results.items()):
        progress("policies and bounds", done, len(results))
        result.measures = {
            name: measure([player.play(contender, *run) for run in runs[cell]], options)
            for name, contender in result.contenders.items()
        }
    progress("policies and bounds", len(results), len(results))
    if options.resamples >= 2:
        _add_replicates(player, results, options, progress, arrivals)
    if len(recording.workloads) == 1:
        (alone,) = recording.workloads
        results |= {(alone, load): result for (_, load), result in results.items()}
    return results, tried


def _arrivals(options: Options) -> Arrivals | None:
    spec = options.arrivals
    return None if spec is None else parse_arrivals(spec, options.rate_scale)


def _add_replicates(
    player: Player,
    results: dict[Cell, CellResult],
    options: Options,
    progress: Progress,
    arrivals: Arrivals | None,
) -> None:
    """Replay all that get intervals over resampled requests, which come anew."""
    contenders = {cell: result.resampled() for cell, result in results.items()}
    some = {cell: list(each.values()) for cell, each in contenders.items()}
    replicates = replicate_speeds(player, some, options, progress, arrivals)
    for cell, result in results.items():
        sizes = [len(pool) for pool in pools_of(player.recording, cell[0])]
        result.variance_ratio = variance_ratio(sizes, cell[1], options.orders)
        result.replicates = dict(zip(contenders[cell], replicates[cell].T, strict=True))


def seen_in_training(named: Sequence[Contender]) -> frozenset[str]:
    """The content hashes of all requests that any named policy was trained on."""
    manifests = [each.manifest for each in named if isinstance(each, LearnedPolicy)]
    return frozenset().union(*(each.training_requests for each in manifests if each is not None))


def _document(
    selection: Selection,
    named: Sequence[Contender],
    cost: CostModel,
    options: Options,
    results: Mapping[Cell, CellResult],
    tried: int,
) -> dict[str, Any]:
    """What all documents say, of traces, policies, costs and replays, with rows and headline."""
    names = list(dict.fromkeys(contender.name for contender in named))
    workloads = selection.counts
    return {
        "schema": REPORT_SCHEMA,
        "adaspec": __version__,
        "cost": cost.name,
        "traces": {
            "sources": list(selection.sources),
            "target": selection.target,
            "drafter": selection.drafter,
            "requests": workloads,
            "left_out": selection.left_out,
        },
        "policies": names,
        "seed": options.seed,
        "orders": options.orders,
        "resamples": options.resamples,
        "cap": options.cap,
        "prefill": options.prefill,
        "charge_decisions": cost.charges_deciding and not options.free_decisions,
        "engine": options.engine,
        "arrivals": options.arrivals,
        "rate_scale": options.rate_scale,
        "slo_ttft_ms": options.slo_ttft_ms,
        "slo_tpot_ms": options.slo_tpot_ms,
        "max_step_ms": options.max_step_ms,
        "notes": list(_notes(selection, named, cost, options)),
        "warm": None,
        "settings": tried,
        "rows": [row for cell, result in results.items() for row in result.rows(cell)],
        "headline": [
            result.headline(
                cell, name, [results[w, cell[1]] for w in workloads if (w, cell[1]) in results]
            )
            for cell, result in results.items()
            for name in names
            if name in result.measures
        ],
    }


def _notes(
    selection: Selection, named: Sequence[Contender], cost: CostModel, options: Options
) -> Iterator[str]:
    yield from selection.warnings
    if not cost.charges_deciding:
        yield "deciding is not charged, as the cost file does not say what it takes (decide_s)"
    # The last part of a folder or hub id is the same however a model is given.
    measured, target = (Path(each or "").name.lower() for each in (cost.target, selection.target))
    if cost == BUILTIN.get(cost.name):
        yield f"costs are those of {cost.hardware}: another machine has other winners"
    elif measured and target and measured != target:
        yield f"the costs are those of {cost.target}, and the traces of {selection.target}"
    if not selection.neural_cap:
        yield "the traces hold no neural drafts: only n-gram settings were replayed"
    if options.engine == ASYNC:
        yield _ASYNC_NOTE
    for policy in named:
        if isinstance(policy, LearnedPolicy) and policy.manifest is not None:
            for what in ("target", "drafter"):
                trained, traced = getattr(policy.manifest, what), getattr(selection, what)
                if None not in (trained, traced) and trained != traced:
                    yield f"'{policy.name}' was trained for the {what} {trained}, not {traced}"


def _mark_seen(
    rows: Sequence[dict[str, Any]], selection: Selection, named: Sequence[Contender]
) -> None:
    """Mark each row whose policy was trained on some of the row's requests."""
    hashes = [(content_hash(request), request.workload) for request in selection.requests]
    for policy in named:
        trained_on = seen_in_training([policy])
        seen = {place for key, workload in hashes if key in trained_on for place in (workload, ALL)}
        for row in rows:
            if row["policy"] == policy.name and row["workload"] in seen:
                row["detail"]["seen_in_training"] = True
