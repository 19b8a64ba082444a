"""One engine under mixed load for long, with faults and mode switches at random.

    python tests/engine/soak.py v1 --minutes 30 -o eval/reports/soak/v1        # or: make soak
    python tests/engine/soak.py v2 --minutes 30 -o eval/reports/soak/v2

Every greedy request is asked of an engine without speculation first. Then they come again and
again, sampled ones among them, to an engine with memory, guard, learning and traces; some are given
up. Every spell of some seconds has another number of requests at once, mode, and fault, or none.
The exit code is 1 where an output differs, where a fault was not counted, or where the process has
grown by more than 5% since the first third of the run. A step of two minutes counts as hanging.
"""

import argparse
import faulthandler
import importlib
import json
import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE / "v2")]
HANGS_S, SPELL_S, SAMPLE_S = 120, (3, 12), 5
GROWTH = 0.05
LOADS = (1, 2, 4, 8)
ASKED = 160
TRACE_BYTES = 4 << 20
RUNNERS = {"v1": "long_v1", "v2": "long_v2"}


STAGES_OF_V1 = ("plan", "forward_ran", "settle", "learn", "release")
LEFT_OUT = ("time", "switched off")
"""Faults of the long runs that are for engines of their own."""


def broken_stage(name):
    """What breaks a stage of V1's executor of steps, now and then."""

    def put(stack, session, recorder):
        from long_faults import now_and_then

        failing = now_and_then(getattr(session._executor, name), RuntimeError("injected"), every=50)
        stack.enter_context(mock.patch.object(session._executor, name, failing))

    return put


def resident_bytes():
    """What of this process lies in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Soak:
    """The engine, what it is asked, and what came of that."""

    def __init__(self, runner, models, folder, rng):
        from long_requests import Draw
        from long_run import Run
        from long_shapes import Shape

        self.is_v2 = runner.__name__ == "long_v2"
        self.places = {
            name: place for name, place in runner.PLACES.items() if name not in LEFT_OUT
        } | ({} if self.is_v2 else {name: broken_stage(name) for name in STAGES_OF_V1})
        self.rng, self.folder, self.mode_file = rng, folder, folder / "mode"
        self.shape = Shape("EAGLE", "eagle", {})
        draw = Draw(rng, self.shape.longest)
        self.asked = [draw.request(0) for _ in range(ASKED)]
        run = Run(runner, models, folder, None, None)
        self.truths = run.truths("target", self.shape.longest, self.asked)
        self.counts, self.faults, self.wrong = Counter(), Counter(), []
        self.running, self.found, self.leaving = {}, {}, {}
        self.engine = self._start(models, folder)
        self.guard = self.engine.scheduler.adaspec_timed.guard
        self.content = False
        self.served = self.recorder = None
        self._serve()

    def _start(self, models, folder):
        from live_engine import Engine
        from wandering import CAP, written_policy

        self.mode_file.write_text("serve")
        config = {
            "method": "adaspec",
            "model": str(models / self.shape.head),
            "policy": written_policy(folder / "policy", memory=True),
            "num_speculative_tokens": CAP,
            "memory_bytes": 1 << 20,
            "guard": True,
            "mode_file": str(self.mode_file),
        }
        return Engine(models, config, async_scheduling=self.is_v2)

    def _serve(self):
        """Serve by a policy that knows nothing, and by which nothing has failed yet."""
        from wandering import random_policy

        from adaspec.vllm.metrics import Counters, MetricsObserver
        from adaspec.vllm.options import Options
        from adaspec.vllm.tracing import recorder_of
        from adaspec.vllm.v2.attachment import serve_by

        if self.recorder is not None:
            self.recorder.close()
        policy = random_policy(int(self.rng.integers(1 << 30)), True, memory=True)
        fraction = {"record_fraction": 0.2, "record_cap": 4}
        if self.is_v2:
            self.served = serve_by(self.engine.runner, policy, **fraction)
        else:
            self.served = self.engine.put(policy, **fraction)
        options = Options(trace_dir=str(self.folder / "traces"), max_trace_bytes=TRACE_BYTES)
        counters = Counters(None, {})
        self.recorder = recorder_of(options, self.served.serving, counters)
        self.served.observers.add(MetricsObserver(counters), self.recorder)

    def spell(self, ends_s, progress):
        """Some seconds of one load, one mode and at most one fault."""
        from long_faults import injected

        load = int(self.rng.choice(LOADS))
        mode = str(self.rng.choice(["serve", "serve", "serve", "shadow", "off"]))
        fault = str(self.rng.choice(list(self.places))) if self.rng.random() < 0.4 else None
        self.counts["mode switches"] += self.mode_file.read_text() != mode
        self.mode_file.write_text(mode)
        self._trust(bool(self.rng.random() < 0.5))
        before = dict(self.served.breaker.counts)
        with injected(self.places.get(fault), self.served, self.recorder):
            while time.monotonic() < ends_s:
                self._step(load)
                progress()
        self.counts["spells"] += 1
        if fault is not None:
            self.faults[fault] += 1
        for stage, count in self.served.breaker.counts.items():
            self.counts[f"faults counted: {stage}"] += count - before.get(stage, 0)
        if fault is None and dict(self.served.breaker.counts) != before:
            self.wrong.append(f"failed by itself: {before} -> {self.served.breaker.counts}")
        if self.served.breaker.off:
            self.counts["switched off"] += 1
            self._serve()

    def _trust(self, content):
        """Let the engine's own guard judge, or one that holds nothing off.

        On models this small nothing is faster than no speculation. Requests end first: a guard is
        told of no step that another one judged.
        """
        from adaspec.policy.guard import Guard
        from adaspec.vllm.guarding import LAGS

        if content == self.content:
            return
        while self.running:
            self._step(0)
        self.content, timed = content, self.engine.scheduler.adaspec_timed
        timed._in_flight.clear()
        lag = LAGS["V2" if self.is_v2 else "V1"]
        timed.guard = Guard(lambda rows, context: 1e6, lag) if content else self.guard

    def _step(self, load):
        core = self.engine.llm.llm_engine
        while len(self.running) < load:
            self._ask(core)
        for name, left in list(self.leaving.items()):
            self.leaving[name] = left - 1
            if left <= 0:
                core.abort_request([name])
                self._judge(name)
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        outputs = core.step()
        faulthandler.cancel_dump_traceback_later()
        self.counts["steps"] += 1
        for out in outputs:
            if out.request_id not in self.running:
                continue
            self.found[out.request_id] |= {each.index: each for each in out.outputs}
            if out.finished:
                self._judge(out.request_id)

    def _ask(self, core):
        from long_requests import sampling

        number = int(self.rng.integers(ASKED))
        one, name = self.asked[number], f"{self.counts['requests']}-soak"
        self.counts["requests"] += 1
        core.add_request(name, {"prompt_token_ids": one.prompt}, sampling(one.params))
        self.running[name], self.found[name] = number, {}
        if one.abort_after is not None:
            self.leaving[name] = one.abort_after

    def _judge(self, name):
        from long_judge import complaint, output_of

        number = self.running.pop(name)
        gone = self.leaving.pop(name, None)
        self.engine.judged.clear()
        found = [output_of(each) for each in self.found.pop(name).values()]
        self.counts["given up" if gone is not None else "ended"] += 1
        self.counts["tokens"] += sum(len(each.tokens) for each in found)
        said = complaint(self.asked[number], self.truths[number], found)
        if said:
            self.wrong.append(f"{name}: {said}")


def main():
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runner", choices=RUNNERS)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path(".pytest_cache/d/engine"))
    parser.add_argument("-o", "--out", type=Path, help="a folder for report.json")
    options = parser.parse_args()
    runner = importlib.import_module(RUNNERS[options.runner])
    from live_engine import models_in

    models, rng = models_in(options.cache), np.random.default_rng(options.seed)
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(runner, models, Path(folder), rng)
        began_s = time.monotonic()
        ends_s = began_s + 60 * options.minutes

        def progress():
            now_s = time.monotonic() - began_s
            if not samples or now_s - samples[-1][0] >= SAMPLE_S:
                samples.append((round(now_s), resident_bytes()))

        while time.monotonic() < ends_s and not soak.wrong:
            spell_s = float(rng.uniform(*SPELL_S))
            soak.spell(min(time.monotonic() + spell_s, ends_s), progress)
            print(f"[{time.monotonic() - began_s:6.0f} s] {dict(soak.counts)}", flush=True)
        took_s = time.monotonic() - began_s
        soak.recorder.close()
        soak.engine.close()
    warm = [size for at, size in samples if at >= took_s / 3]
    tenth = max(1, len(warm) // 10)
    first, last = float(np.median(warm[:tenth])), float(np.median(warm[-tenth:]))
    growth = last / first - 1
    if growth > GROWTH:
        soak.wrong.append(f"memory grew by {growth:.1%} after the first third")
    document = {
        "runner": options.runner,
        "seed": options.seed,
        "minutes": round(took_s / 60, 1),
        "counts": dict(soak.counts),
        "spells with a fault": dict(soak.faults),
        "memory_bytes": {"after_a_third": first, "at_the_end": last, "samples": samples},
        "memory_growth": round(growth, 4),
        "wrong": soak.wrong,
        "command": shlex.join(["python", "tests/engine/soak.py", *sys.argv[1:]]),
    }
    print(json.dumps({k: v for k, v in document.items() if k != "memory_bytes"}, indent=1))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "report.json").write_text(json.dumps(document, indent=1) + "\n")
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
