"""What each step of a V2 engine was: what it ran on, in which CUDA graph, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from compilations import Compilations
from engines import DISPATCHERS, core, model_runner
from forced import replace

from adaspec.vllm.scheduler import GUARD_ATTRIBUTE

COLUMNS = (
    "ms",  # from the outputs of the step before, or from its own beginning if there was none
    "rows",
    "context",  # known tokens of all rows, at most
    "prompt",  # prompt tokens that are read, one of each row left out
    "tokens",  # all that the target runs on
    "drafted",  # those of them that are drafts: the budget
    "padded",  # the size of the graph
    "mode",  # the kind of the target's graph
    "head_mode",  # and of the head's first forward's
    "forwards",  # of the head; a keep-alive is 0 of them
    "emitted",
    "answers",  # rows that emitted something
    "guard_state",  # the guard's
    "switches",  # how often the guard has held speculation off
    "compiled",  # how much was compiled or captured meanwhile
)


class Steps:
    """Writes down an engine's steps; to be made before the engine, and then put into it."""

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []
        """The steps whose outputs have come, in their order."""
        self.preempted = 0
        """How many requests the scheduler has put off for lack of memory."""
        self._current: dict[str, Any] = {}
        self._running: dict[int, dict[str, Any]] = {}
        self._compilations = Compilations()
        self._last_s, self._compiled = 0.0, 0
        self._scheduler: Any = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hear which CUDA graphs the engines choose that start meanwhile."""
        with ExitStack() as replaced:
            for name, part in DISPATCHERS.items():

                def dispatch(original: Any, *args: Any, part: str = part, **named: Any) -> Any:
                    found = original(*args, **named)
                    self._dispatched(part, args[2], found[0])
                    return found

                replace(replaced, import_module(name), "dispatch_cg_and_sync_dp", dispatch)
            yield

    def put_into(self, llm: Any) -> None:
        """Watch this engine's steps from here on."""
        runner, scheduler = model_runner(llm), core(llm).scheduler
        self._scheduler = scheduler
        execute, update = runner.execute_model, scheduler.update_from_output

        def execute_model(scheduled: Any, *args: Any, **named: Any) -> Any:
            if not named.get("dummy_run") and scheduled.total_num_scheduled_tokens:
                self._begin(scheduled)
            return execute(scheduled, *args, **named)

        def update_from_output(scheduled: Any, output: Any) -> Any:
            result = update(scheduled, output)
            self._end(scheduled, result)
            return result

        preempt = scheduler._preempt_request

        def preempt_request(*args: Any, **named: Any) -> Any:
            self.preempted += 1
            return preempt(*args, **named)

        runner.execute_model, scheduler.update_from_output = execute_model, update_from_output
        scheduler._preempt_request = preempt_request
        worker = getattr(runner, "adaspec_session", None)
        if worker is not None:
            worker.observers.add(self)
        elif hasattr(runner.speculator, "propose"):
            self._watch_forwards(runner.speculator)

    def forwards(self, drafting: int, keep_alive: int) -> None:
        """adaspec's drafter ran."""
        self._current["forwards"] = drafting

    def _watch_forwards(self, speculator: Any) -> None:
        propose, is_neural = speculator.propose, hasattr(speculator, "sample_draft")

        def count(*args: Any, num_speculative_tokens: int | None = None, **named: Any) -> Any:
            most = speculator.num_speculative_steps
            asked = most if num_speculative_tokens is None else num_speculative_tokens
            self._current["forwards"] = asked if is_neural else 0
            return propose(*args, num_speculative_tokens=num_speculative_tokens, **named)

        speculator.propose = count

    def _begin(self, scheduled: Any) -> None:
        rows, total = len(scheduled.num_scheduled_tokens), scheduled.total_num_scheduled_tokens
        drafted = sum(map(len, scheduled.scheduled_spec_decode_tokens.values()))
        requests = self._scheduler.requests
        guarded = getattr(scheduled, GUARD_ATTRIBUTE, None)
        self._current = self._running[id(scheduled)] = {
            "began_s": time.perf_counter(),
            "rows": rows,
            "context": sum(requests[name].num_computed_tokens for name in self._known(scheduled)),
            "prompt": total - drafted - rows,
            "tokens": total,
            "drafted": drafted,
            "padded": total,
            "mode": "NONE",
            "head_mode": None,
            "forwards": 0,
            "guard_state": None if guarded is None else guarded.state,
            "switches": 0 if guarded is None else guarded.switches,
        }

    def _known(self, scheduled: Any) -> list[str]:
        return [name for name in scheduled.num_scheduled_tokens if name in self._scheduler.requests]

    def _dispatched(self, part: str, tokens: int, chosen: Any) -> None:
        step, mode = self._current, chosen.cg_mode.name
        if not step:  # a dummy one, as the engine starts
            return
        if part == "head":
            step["head_mode"] = step["head_mode"] or mode
        else:
            # Drafts are trimmed on the device: how many tokens are left is known here.
            step["drafted"] -= step["tokens"] - tokens
            step |= {"tokens": tokens, "padded": chosen.num_tokens, "mode": mode}

    def _end(self, scheduled: Any, outputs: Any) -> None:
        step = self._running.pop(id(scheduled), None)
        if step is None:
            return
        now_s, compiled = time.perf_counter(), self._compilations.total()
        step["ms"] = 1e3 * (now_s - max(self._last_s, step.pop("began_s")))
        step["compiled"] = compiled - self._compiled
        self._last_s, self._compiled = now_s, compiled
        emitted = [len(out.new_token_ids) for each in outputs.values() for out in each.outputs]
        step["emitted"], step["answers"] = sum(emitted), sum(map(bool, emitted))
        self.done.append(step)


def as_columns(steps: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Steps by column, which takes a third of the room."""
    found = {name: [step[name] for step in steps] for name in COLUMNS}
    found["ms"] = [round(each, 3) for each in found["ms"]]
    return found
