"""What steps cost: profiles of V1 and V2, as `adaspec profile` takes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from engines import has_gpu, models_of, opened
from results import Cells

from adaspec.bench.profile.measurement import CPU_BATCHES, GPU_BATCHES, Grid, measure
from adaspec.bench.profile.profile import Profile, fit_profile, profile_machine
from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import save_cost
from adaspec.vllm.compatibility import installed_version
from adaspec.vllm.machine import hardware
from adaspec.vllm.profiling import (
    DRAFT,
    SAMPLE,
    VERIFY,
    Plan,
    ProfiledEngine,
    Stopwatch,
    Subject,
    TimedStep,
)

SETTLING_STEPS = 4
"""V2 prepares a step while the last one runs: so long are drafts of an earlier plan verified."""
TIMED_V2 = {VERIFY: "execute_model", SAMPLE: "sample", DRAFT: "speculator.propose"}


def profile(settings: dict[str, Any], cells: Cells, folder: Path) -> dict[str, Any]:
    """Profile an engine, and write its cost model."""
    grid = Grid(**{name: _tuple(value) for name, value in settings["grid"].items()})
    target, head = models_of(settings)
    subject = Subject(target, head, settings["engine"], "eagle3")
    if settings["runner"] == "V1":
        taken = profile_machine(subject, grid)
    else:
        taken = profile_v2(subject, grid, settings, folder)
    # Its folder says nothing to others.
    name = f"{settings['called'].rpartition('/')[2]} on {hardware()}, {settings['runner']}"
    taken = replace(taken, cost=replace(taken.cost, name=name, target=settings["called"]))
    (folder / "costs").mkdir(exist_ok=True)
    save_cost(taken.cost, folder / "costs" / f"{settings['name']}.json", taken.fit)
    return taken.document()


def profile_v2(subject: Subject, grid: Grid, settings: dict[str, Any], folder: Path) -> Profile:
    """The profile of a V2 engine, of whole steps: their parts overlap."""
    batches = grid.batches or (GPU_BATCHES if has_gpu() else CPU_BATCHES)
    with opened(
        subject.model,
        {
            "method": "adaspec",
            "model": subject.draft,
            "draft_method": "eagle3",
            "policy": settings["policy"],
            "cost": DEFAULT,
            "guard": False,
            "num_speculative_tokens": grid.longest_draft,
        },
        "V2",
        {"max_num_seqs": max(batches), **subject.engine},
    ) as llm:
        engine = AsyncEngine(llm, grid.longest_draft, grid.seed)
        measurement = measure(engine, grid, batches, True, _silent)
        for kind in measurement.kinds:
            kind.parts.clear()
        facts = {"vllm": installed_version(), "dtype": engine.dtype, "drafter": subject.draft}
        facts |= {"arguments": subject.engine, "trims": engine.trims}
        taken = fit_profile(measurement, subject.model, engine.captured_sizes, grid.seed, facts)
        return replace(taken, cost=replace(taken.cost, hardware=hardware()))


class Forced:
    """Decides for a V2 worker what a plan says."""

    def __init__(self, worker: Any) -> None:
        self.current, self.holds = Plan(), False
        host = worker.host
        decide = host.decide

        def decide_forced(*facts: Any) -> Any:
            decided = decide(*facts)
            decided.forwards = self.current.forwards if decided.holds_neural.any() else 0
            return decided

        def enter_forced(*facts: Any) -> bool:
            return self.holds

        host.decide, host.enter = decide_forced, enter_forced
        host.keeps = lambda *_: True
        host.budget = lambda running, _: running * self.current.draft_len
        host.length = lambda: self.current.draft_len


class AsyncStopwatch(Stopwatch):
    """Times whole steps of V2: from one to the next, once all that runs is of the same plan."""

    def __init__(self, runner: Any, policy: Forced) -> None:
        super().__init__(runner, TIMED_V2)
        self._policy, self._plan = policy, policy.current
        self._verified: int | None = None
        manager = runner.adaptive_verification
        if manager is None:
            return
        count = manager.get_num_tokens

        def get_num_tokens(*args: Any) -> int:
            self._verified = count(*args)
            return self._verified

        manager.get_num_tokens = get_num_tokens

    def time_step(self, step: Any) -> TimedStep | None:
        """Time a step; the first one of a plan is None, after some that are not timed."""
        if self._policy.current is not self._plan:
            self._plan = self._policy.current
            for _ in range(SETTLING_STEPS):
                step()
            return None
        self._verified = None
        timed = super().time_step(step)
        if timed is None or self._verified is None:
            return timed
        return replace(timed, tokens=self._verified)


class AsyncEngine(ProfiledEngine):
    """A V2 engine with a policy that follows a fixed plan, under the interface of V1's."""

    def __init__(self, llm: Any, max_draft: int, seed: int) -> None:
        """Take over an engine that adaspec serves on V2."""
        self._take(llm, max_draft, seed)
        worker = self._runner.adaspec_worker
        self.trims = worker.trims
        self._policy = Forced(worker)
        self.session = worker
        self._stopwatch = AsyncStopwatch(self._runner, self._policy)
        worker.observers.add(self._stopwatch)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _silent(*_: Any) -> None:
    pass
