"""Throughput of one method at several loads: requests of a trace in a closed loop.

So many requests run at any time; as one ends the next enters. The clock stops when the first place
cannot be filled again.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from engines import (
    Skip,
    core,
    graphs_counted,
    model_runner,
    models_of,
    opened,
    tiny_models,
)
from forced import Forcing, Recordings
from results import Cells, wait_for_turn

from adaspec.evaluate.selection import Wanted, select
from adaspec.policy.learned import load_policy
from adaspec.trace.schema import Request

LEAST_REQUESTS, PASSES = 8, 3
"""Requests at a load: so many, or so many per place."""


@dataclass(frozen=True)
class Asked:
    """A request: its prompt, and how long its output is."""

    prompt: Sequence[int]
    output_tokens: int
    recorded: Request | None = None


def measure(settings: dict[str, Any], cells: Cells, folder: Path) -> dict[str, Any]:
    """Measure a method at every load; what `cells` has already is not measured again."""
    check_method(settings["config"] or {})
    requests = asked_for(settings, folder)
    method, runner, forced = settings["method"], settings["runner"], settings["forced"]
    target, head = models_of(settings)
    forcing = Forcing(Recordings([each.recorded for each in requests])) if forced else None  # type: ignore[misc]
    counting = graphs_counted() if runner == "V2" else nullcontext({})
    config, engine = _config(settings, head, folder), settings["engine"]
    with (
        forcing.installed(runner) if forcing else nullcontext(),
        counting as graphs,
        opened(target, config, runner, engine) as llm,
    ):
        wait_for_turn(folder)
        loop = ClosedLoop(llm, requests, forcing)
        # What forcing takes is told by no speculation, with forced outputs and without.
        ways = (True, False) if forcing and method == "none" else (True,)
        for load, forces in itertools.product(settings["loads"], ways):
            key = f"{load}" if forces else f"{load} not forced"
            if key in cells:
                continue
            if forcing:
                forcing.forces_target = forces
            order = draw(len(requests), load, settings["seed"], settings["most_requests"])
            loop.warm_up(order[:load], settings["warm_tokens"])
            for modes in graphs.values():
                modes.clear()
            ran = loop.run(order, load)
            if faults := _faults(llm):
                raise RuntimeError(
                    f"adaspec counted faults, so that this is no measurement: {faults}"
                )
            cells.add(key, {"load": load, "forced": forces, "graphs": _copied(graphs), **ran})
    return {"cells": len(cells), "cost": config.get("cost") if config else None}


def check_method(config: dict[str, Any]) -> None:
    """Raise `Skip` where this vLLM, or what it needs for a method, is not there."""
    from vllm.config import SpeculativeConfig

    if config.get("method") == "suffix" and find_spec("arctic_inference") is None:
        raise Skip("needs arctic-inference, which is not installed")
    if config.get("method") != "adaspec":
        for key in config.keys() - SpeculativeConfig.__dataclass_fields__.keys():
            raise Skip(f"this vLLM has no {key}")


def asked_for(settings: dict[str, Any], folder: Path) -> list[Asked]:
    """The requests that a stage draws from."""
    if settings["traces"] == "documents":
        tiny_models(Path(settings["cache"]))
        from tiny_models import document, ids_of

        count, tokens = settings["requests"], settings["output_tokens"]
        return [Asked(ids_of(document(at, 3)), tokens) for at in range(count)]
    manifest = load_policy(settings["policy"]).manifest
    seen = frozenset(manifest.training_requests if manifest else ())
    chosen = select([settings["traces"]], Wanted(seen=seen)).requests
    most = settings["prompt_tokens"]
    chosen = tuple(each for each in chosen if len(each.prompt_tokens) <= most)
    order = np.random.default_rng(0).permutation(len(chosen))[: settings["requests"]]
    cut = [shortened(chosen[at], settings["output_tokens"]) for at in order]
    return [Asked(each.prompt_tokens.tolist(), len(each.output_tokens), each) for each in cut]


def shortened(request: Request, tokens: int) -> Request:
    """A recorded request of which the output ends after so many tokens at the latest."""
    drafted, confidences = request.drafted_tokens, request.confidences
    assert drafted is not None and confidences is not None
    return replace(
        request,
        output_tokens=request.output_tokens[:tokens],
        drafted_tokens=drafted[:tokens],
        confidences=confidences[:tokens],
    )


def draw(count: int, load: int, seed: int, most: int) -> list[int]:
    """The requests of a load in their order: whole shuffled passes, the same for every method."""
    wanted = min(max(LEAST_REQUESTS, PASSES * load), most)
    generator = np.random.default_rng((seed, load))
    passes = [generator.permutation(count) for _ in range(-(-wanted // count))]
    return [int(at) for at in np.concatenate(passes)[:wanted]]


class ClosedLoop:
    """Requests that run in an engine of this process."""

    def __init__(self, llm: Any, requests: Sequence[Asked], forcing: Forcing | None) -> None:
        self._engine, self._scheduler = llm.llm_engine, core(llm).scheduler
        self._requests, self._forcing = requests, forcing
        self._names = itertools.count()

    def warm_up(self, order: Sequence[int], tokens: int) -> None:
        """Run the beginnings of some requests, so that what is compiled late is compiled."""
        for at in order:
            self._add(at, tokens)
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def run(self, order: Sequence[int], load: int) -> dict[str, Any]:
        """Run requests, so many at once; what came of it."""
        waiting, running = deque(order), dict[str, int]()
        steps, rows, longest_s = 0, 0, 0.0
        outputs: list[tuple[int, list[int]]] = []
        with self._verifications() as verified:
            began_s = time.perf_counter()
            while waiting or len(running) == load:
                while waiting and len(running) < load:
                    at = waiting.popleft()
                    running[self._add(at)] = at
                steps, rows = steps + 1, rows + len(running)
                step_began_s = time.perf_counter()
                ended = self._engine.step()
                longest_s = max(longest_s, time.perf_counter() - step_began_s)
                for each in ended:
                    if each.finished:
                        outputs.append((running.pop(each.request_id), each.outputs[0].token_ids))
            # Those that still run have come this far.
            requests = self._scheduler.requests.values()
            partial = sum(each.num_output_tokens for each in requests if not each.is_finished())
            seconds = time.perf_counter() - began_s
        self._engine.abort_request(list(running))
        while self._engine.has_unfinished_requests():
            self._engine.step()
        tokens = sum(len(output) for _, output in outputs) + partial
        for at, output in outputs:
            self._check(at, list(output))
        drafted, accepted = np.array(verified or [(0, 0)]).sum(0).tolist()
        return {
            "requests": len(order),
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_s": tokens / seconds,
            "steps": steps,
            "longest_step_s": longest_s,
            "tokens_per_row": tokens / rows,
            "verifications": len(verified),
            "drafted": drafted,
            "accepted": accepted,
            "outputs": [[at, digest(output)] for at, output in sorted(outputs)],
        }

    def _add(self, at: int, most: int | None = None) -> str:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        asked, name = self._requests[at], f"{at}-{next(self._names)}"
        length = asked.output_tokens if most is None else min(most, asked.output_tokens)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=length,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(name, {"prompt_token_ids": list(asked.prompt)}, params)
        return name

    def _check(self, at: int, output: list[int]) -> None:
        """An output that is forced is the recorded one."""
        recorded = self._requests[at].recorded
        if self._forcing is None or not self._forcing.forces_target or recorded is None:
            return
        if output != recorded.output_tokens.tolist():
            raise RuntimeError(f"request {at} was not forced: its output is not the recorded one")

    @contextmanager
    def _verifications(self) -> Iterator[list[tuple[int, int]]]:
        """The drafted and accepted tokens of every verified draft, as vLLM counts them."""
        found: list[tuple[int, int]] = []
        original = self._scheduler.make_spec_decoding_stats

        def count(stats: Any, num_draft_tokens: int, num_accepted_tokens: int, *a: Any, **k: Any):  # type: ignore[no-untyped-def]
            found.append((num_draft_tokens, num_accepted_tokens))
            return original(stats, num_draft_tokens, num_accepted_tokens, *a, **k)

        self._scheduler.make_spec_decoding_stats = count
        try:
            yield found
        finally:
            self._scheduler.make_spec_decoding_stats = original


def _config(settings: dict[str, Any], head: str, folder: Path) -> dict[str, Any] | None:
    """vLLM's speculative config; adaspec's names the costs that were measured here, if any were."""
    config = settings["config"]
    if config is None or "model" not in config:
        return config
    config = {**config, "model": head}
    if config["method"] != "adaspec":
        return config
    measured = folder / "costs" / f"{settings['costs']}.json"
    return {**config, "cost": str(measured) if measured.exists() else settings["default_cost"]}


def _faults(llm: Any) -> dict[str, int]:
    runner = model_runner(llm)
    served = getattr(runner, "adaspec_worker", None) or getattr(runner, "adaspec_session", None)
    return dict(served.breaker.counts) if served else {}


def _copied(graphs: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {part: dict(modes) for part, modes in graphs.items()}


def digest(output: Sequence[int]) -> str:
    """What tells an output from others."""
    return hashlib.sha256(str(list(output)).encode()).hexdigest()[:12]
