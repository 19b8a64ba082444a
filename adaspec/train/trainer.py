"""Training: what a recording shows at every position, fits, and at which loads the drafter pays.

Training requests are dealt into folds, and each fold is surveyed under the model of the others. So
everything on which a request's rows depend (token tables, the expectations that evidence revises)
comes from models that never saw that request. Surveys and replays may run on a Dask `Cluster`;
where that is lost, this machine goes on.
"""

from __future__ import annotations

import copy
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.errors import TrainingError
from adaspec.evaluate.options import Options, Progress, silent
from adaspec.evaluate.selection import Selection
from adaspec.evaluate.traffic import draw_passes
from adaspec.policy.protocol import LearnedPolicy
from adaspec.predict.model import CURVES, HEADS, LONGEST_NEURAL, Model
from adaspec.predict.network import BinnedCurves, Network, constant_network, no_curves
from adaspec.predict.tables import no_tables
from adaspec.replay.learned import LearnedReplay
from adaspec.replay.recording import build_recording
from adaspec.trace.identity import dialogue_hashes
from adaspec.train import rows
from adaspec.train.heads import FIT, Boosters, HeadMaker, Settings
from adaspec.train.network import distilled, one_torch_thread
from adaspec.train.rows import Array, Members, Recorded, Table, TableMaker

FOLDS = 3
STAGES = 5
SURVEYED_POSITIONS = 300_000
"""Most positions that are surveyed; further requests only go into the token tables."""

Forwards = Mapping[int, int]
"""Load -> forwards of the drafter in a step."""
Spread = Callable[..., list[Any]]
"""A function that calls a method for many arguments, as `map` does, several at once if it can."""


def in_threads(workers: int) -> Spread:
    """A `Spread` over threads: replays and fits are compiled and release the GIL."""
    pool = Parallel(workers, prefer="threads")
    return lambda method, *arguments: list(pool(map(delayed(method), *arguments)))


class Trainer:
    """Trains on a selection's requests, or on a subset of them."""

    def __init__(
        self,
        selection: Selection,
        cost: CostModel,
        options: Options,
        general: bool = False,
        progress: Progress = silent,
        spread: Spread | None = None,
    ) -> None:
        """Prepare what all training on these requests shares; refuse them if no draft was right.

        Replays at the loads of `options` say whether the drafter pays. `general` training makes no
        token tables. `spread` runs surveys and replays; None uses threads.
        """
        requests, cap = selection.requests, selection.neural_cap
        recording = build_recording(requests, cap)
        columns = recording.columns
        if not ((columns.run >= 1).any() or (columns.neural >= 1).any()):
            raise TrainingError(
                f"nothing to learn from: no draft was right at any of {len(columns.run):,} "
                "positions: serve this traffic without speculation"
            )
        self.recording, self.recorded = recording, Recorded(recording)
        self.cost, self.options = cost, options
        self.progress, self.spread = progress, spread
        self.settings = Settings(seed=options.seed, threads=options.workers)
        shown = [each for each in requests if each.drafted_tokens is not None]
        self.shown = recording
        """The first of the requests, with the drafted tokens that the others lack."""
        if 0 < len(shown) < len(requests):
            self.shown = build_recording(shown, cap)
        # Requests of which only the text is known go into the token tables alone.
        texts = build_recording(selection.unpaired, 0) if selection.unpaired else None
        self.maker = None if general else TableMaker(recording, options.seed, texts)

    def portable(self) -> Trainer:
        """A copy that can be sent to another process."""
        other = copy.copy(self)
        other.progress, other.spread = silent, None
        return other

    @one_torch_thread()
    def train(self, members: Members) -> tuple[LearnedPolicy, Forwards, dict[str, Boosters]]:
        """Train on the marked requests: a policy, its forwards, and what its networks learned."""
        self.progress("training", 0, STAGES)
        folds = self._folds(self._some(members, SURVEYED_POSITIONS))
        others = [members & ~fold for fold in folds]
        spread = self.spread or in_threads(self.settings.threads)

        def surveyed(models: list[Model], drafts: bool) -> Table:
            return rows.pooled(spread(self._survey, models, folds, [drafts] * FOLDS))

        models = [self._blank(other) for other in others]
        table = surveyed(models, drafts=False)
        models = self._fold_models(models, table, others)
        self.progress("training", 1, STAGES)
        # Features of splices and evidence include what is expected before they are seen.
        if self.shown.shows_tokens and self.shown.neural_cap > 0:
            unread = {"evidence": _constant_heads("evidence", 0.6)}
            models = [replace(model, networks={**model.networks, **unread}) for model in models]
            evidence = surveyed(models, drafts=True)["evidence"]
            models = self._fold_models(models, {"evidence": evidence}, others)
        self.progress("training", 2, STAGES)
        drafts = surveyed(models, drafts=True)
        models = self._fold_models(models, drafts, others)
        self.progress("training", 3, STAGES)
        forwards = self._forwards_at_first(spread, models, folds)
        self.progress("training", 4, STAGES)
        blank = self._blank(members)
        (model,), (boosters,) = self._models([blank], [table | drafts], self.settings)
        self.progress("training", STAGES, STAGES)
        return self._policy(model, forwards), forwards, boosters

    def _some(self, members: Members, most: int) -> Members:
        """The members, or a random part of each workload, of about `most` positions in total."""
        lengths = self.recording.columns.length
        share = most / max(int(lengths[members].sum()), 1)
        if share >= 1:
            return members
        rng = np.random.default_rng([self.settings.seed, 0x50EE])
        chosen = np.zeros_like(members)
        for inside in self._by_workload(members):
            count = min(len(inside), max(FOLDS, round(share * len(inside))))
            chosen[rng.permutation(inside)[:count]] = True
        return chosen

    def _by_workload(self, members: Members) -> list[NDArray[np.int64]]:
        workloads = range(len(self.recording.workloads))
        return [np.flatnonzero(members & (self.recording.workload == w)) for w in workloads]

    def _folds(self, members: Members) -> list[Members]:
        """Parts of the members, each workload spread evenly, no dialogue of it in two."""
        rng = np.random.default_rng([self.settings.seed, 0xF01D])
        fold_of = np.full(len(members), -1)
        _, dialogue = np.unique(dialogue_hashes(self.recording.requests), return_inverse=True)
        for inside in self._by_workload(members):
            _, first, turns = np.unique(dialogue[inside], return_index=True, return_inverse=True)
            dealt = np.full(len(inside), -1)
            dealt[rng.permutation(np.sort(first))] = np.arange(len(first)) % FOLDS
            fold_of[inside] = dealt[first[turns]]
        return [fold_of == fold for fold in range(FOLDS)]

    def _fold_models(
        self, models: list[Model], table: Table, others: Sequence[Members]
    ) -> list[Model]:
        """Each fold's model, the table's groups fitted on the rows of the other folds."""
        request = self.recorded.request
        seen = [
            {group: each.chosen(other[request[each.at]]) for group, each in table.items()}
            for other in others
        ]
        return self._models(models, seen, self.settings.rough())[0]

    def _models(
        self, models: Sequence[Model], tables: Sequence[Table], settings: Settings
    ) -> tuple[list[Model], list[dict[str, Boosters]]]:
        """The models, each with the groups of its table fitted anew; and their boosters."""
        at_once = settings.threads
        if at_once > 1:
            # LightGBM has one number of threads for the whole process: fits that run at once must
            # agree on it, or one of them writes beyond its buffers.
            settings = replace(settings, threads=1)

        def fit(at: int, group: str) -> tuple[Boosters, Mapping[str, BinnedCurves], Network]:
            rng = np.random.default_rng([settings.seed, 0x7815])
            seen = rows.thinned(tables[at][group], settings.max_rows, rng)
            trees, curves = FIT[group](self.recorded, seen, HeadMaker(group, settings))
            return trees, curves, distilled(group, trees, seen.x, settings)

        jobs = [(at, group) for at, table in enumerate(tables) for group in table]
        fitted = in_threads(at_once)(fit, *zip(*jobs, strict=True))
        made, boosters = list(models), [dict[str, Boosters]() for _ in models]
        for (at, group), (trees, curves, network) in zip(jobs, fitted, strict=True):
            boosters[at][group] = trees
            networks = {**made[at].networks, group: network}
            made[at] = replace(made[at], networks=networks, curves={**made[at].curves, **curves})
        return made, boosters

    def _policy(self, model: Model, forwards: Forwards | None = None) -> LearnedPolicy:
        # Drafts reach no further than what is verified.
        cap = self.options.cap
        neural_cap = min(self.recording.neural_cap, cap)
        return LearnedPolicy("training", model, cap, neural_cap, forwards=forwards)

    def _blank(self, members: Members) -> Model:
        """A model that knows nothing but tables of these requests."""
        networks = {group: _constant_heads(group, 0.5) for group in ("before", "splice")}
        tables = no_tables() if self.maker is None else self.maker.make(members)
        return Model(networks, {name: no_curves() for name in CURVES}, tables)

    def _survey(self, model: Model, fold: Members, drafts: bool) -> Table:
        """What the model reads in a fold: before drafting, or else of drafts and behind them."""
        if not drafts:
            return {"before": rows.survey(self.recording, model, fold, 0)["before"]}
        most = min(self.recording.neural_cap, self.options.cap, LONGEST_NEURAL)
        if self.shown is self.recording:
            table = rows.survey(self.recording, model, fold, most)
        else:
            shown, others = fold[: len(self.shown)], fold.copy()
            others[: len(self.shown)] = False
            table = rows.survey(self.shown, model, shown, most)
            hidden = rows.survey(self.recording, model, others, most)
            both = [{"splice": each["splice"]} for each in (table, hidden)]
            table |= rows.pooled(both)
        return {group: each for group, each in table.items() if group != "before"}

    def _forwards_at_first(
        self, spread: Spread, models: list[Model], folds: list[Members]
    ) -> Forwards:
        """By load 1, or 0 where the drafter does not pay for its prompts and forwards; by replays
        of each fold under the others' model. Beyond 1, a policy finds out by itself."""
        if self.recording.neural_cap == 0:
            return {}

        speeds = np.sum(spread(self._log_throughputs, models, folds), axis=0)
        pays = speeds[:, 1] > speeds[:, 0]
        return dict(zip(self.options.concurrency, pays.astype(int).tolist(), strict=True))

    def _log_throughputs(self, model: Model, fold: Members) -> Array:
        """(loads, 2) of replays of a fold with 0 and with 1 forward at first."""
        requests = np.flatnonzero(fold).astype(np.int32)
        replay = LearnedReplay(self.recording, self._policy(model), requests)
        chosen = self.cost, self.options.cap, self.options.engine
        longest_s = self.options.longest_s
        speeds = []
        for load in self.options.concurrency:
            rng = np.random.default_rng([self.settings.seed, 4, load])
            order = draw_passes(self.recording, fold, load, rng)
            runs = (
                replay.run(order, load, *chosen, {load: forwards}, longest_s=longest_s)
                for forwards in (0, 1)
            )
            speeds.append([run.tokens_per_s for run in runs])
        return np.log(speeds)


def _constant_heads(group: str, value: float) -> Network:
    return constant_network([value] * len(HEADS[group]))


CONNECT_S = 10.0
GONE_S = 30.0
"""Seconds without workers after which the cluster is given up."""


class Cluster(AbstractContextManager["Cluster"]):
    """The workers of one scheduler, connected to until the end of a `with`."""

    def __init__(self, address: str, say: Callable[[str], None] = lambda what: None) -> None:
        """Call `say` once, if work has to be done on this machine after all."""
        self.address, self._say, self._lost = address, say, False
        self._sent: tuple[Any, Any] = None, None
        """The trainer whose methods were called last, and where it is on the workers."""
        try:
            from dask.distributed import Client

            self._client = Client(address, timeout=CONNECT_S, set_as_default=False)
            self._client.wait_for_workers(1, timeout=CONNECT_S)
        except ImportError as error:
            raise TrainingError("--dask needs Dask: pip install 'adaspec[dask]'") from error
        # Dask asserts that a thread of its own starts in time, which a busy machine can miss.
        except (OSError, ValueError, TypeError, AssertionError) as error:
            raise TrainingError(
                f"no Dask scheduler with workers answers at '{address}' ({_in_short(error)}): "
                "start `dask scheduler`, then `dask worker` with its address (tcp://HOST:8786)"
            ) from error

    def __exit__(self, *_: object) -> None:
        """Disconnect; the cluster itself keeps running."""
        self._client.close(timeout=5)

    def spread(self, method: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """Call a trainer's method for many arguments, as `map` does, on the free workers."""
        calls = list(zip(*arguments, strict=True))
        if not self._lost:
            try:
                return self._called(method, calls)
            except Exception as error:
                self._lost = True
                self._say(f"Dask at {self.address}: {_in_short(error)}: going on on this machine")
        return [method(*each) for each in calls]

    def _called(self, method: Any, calls: list[tuple[Any, ...]]) -> list[Any]:
        trainer, function = method.__self__, method.__func__
        if self._sent[0] is not trainer:
            there = self._client.scatter(trainer.portable(), broadcast=True, hash=False)
            self._sent = trainer, there
        there = self._sent[1]
        futures = [self._client.submit(function, there, *call, pure=False) for call in calls]
        while not all(future.done() for future in futures):
            time.sleep(0.1)
            self._client.wait_for_workers(1, timeout=GONE_S)
        return [future.result() for future in futures]


def _in_short(error: Exception) -> str:
    return textwrap.shorten(str(error) or type(error).__name__, 160, placeholder="...")
