"""One engine under mixed load for long, with faults and mode switches at random.

    python eval/soak/soak.py v1 --minutes 30 -o eval/reports/soak/v1        # or: make soak
    python eval/soak/soak.py v2 --minutes 30 -o eval/reports/soak/v2

Every greedy request is asked of an engine without speculation first. Then they come again and
again, sampled ones among them, to an engine with a ring, guard and traces; some are given
up. Every spell of some seconds has another number of requests at once, mode, and fault, or none.
vLLM's own memory grows with every step, without a drafter too. So an engine without adaspec is fed
the same requests in a process of its own first, for a third of the time.
The exit code is 1 where an output differs, where a fault was not counted, or where the process has
grown, since the first third of the run, by more than such an engine in as many steps and 5%. A step
of two minutes counts as hanging.
"""

import argparse
import faulthandler
import importlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from adaspec.cost.load import DEFAULT

CHECKOUT = Path(__file__).parents[2]
sys.path += [str(CHECKOUT / "tests" / each) for each in ("engine", "engine/v2")]
HANGS_S, SPELL_S, SAMPLE_S = 120, (3, 12), 5
GROWTH = 0.05
LOADS = (1, 2, 4, 8)
ASKED = 160
TRACE_BYTES = 4 << 20
RUNNERS = {"v1": "long_v1", "v2": "long_v2"}
LEFT_OUT = ("switched off",)
"""A fault of the long runs that is for engines of its own."""


def resident_bytes():
    """What of this process lies in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def eagle():
    """The shape of the engines."""
    from long_shapes import Shape

    return Shape("EAGLE", "eagle", {})


def drawn_requests(rng, shape):
    """What is asked again and again."""
    from long_requests import Draw

    draw = Draw(rng, shape.longest)
    return [draw.request(0) for _ in range(ASKED)]


class Load:
    """Requests that come to an engine again and again, so many at once; some are given up."""

    def __init__(self, engine, asked, rng, ended):
        self.engine, self.asked, self.rng, self.ended = engine, asked, rng, ended
        self.core = engine.llm.llm_engine
        self.running, self.found, self.leaving = {}, {}, {}
        self.counts = Counter()

    def step(self, at_once):
        """One step of the engine, with so many requests where fewer were left."""
        while len(self.running) < at_once:
            self._ask()
        for name, left in list(self.leaving.items()):
            self.leaving[name] = left - 1
            if left <= 0:
                self.core.abort_request([name])
                self._end(name)
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        outputs = self.core.step()
        faulthandler.cancel_dump_traceback_later()
        self.counts["steps"] += 1
        for out in outputs:
            if out.request_id not in self.running:
                continue
            self.found[out.request_id] |= {each.index: each for each in out.outputs}
            if out.finished:
                self._end(out.request_id)

    def _ask(self):
        from long_requests import sampling

        number = int(self.rng.integers(ASKED))
        one, name = self.asked[number], f"{self.counts['requests']}-soak"
        self.counts["requests"] += 1
        self.core.add_request(name, {"prompt_token_ids": one.prompt}, sampling(one.params))
        self.running[name], self.found[name] = number, {}
        if one.abort_after is not None:
            self.leaving[name] = one.abort_after

    def _end(self, name):
        from long_judge import output_of

        number = self.running.pop(name)
        given_up = self.leaving.pop(name, None) is not None
        self.engine.judged.clear()
        found = [output_of(each) for each in self.found.pop(name).values()]
        self.counts["given up" if given_up else "ended"] += 1
        self.counts["tokens"] += sum(len(each.tokens) for each in found)
        self.ended(name, number, found)


class MemorySamples:
    """How large the process was, and after how many steps."""

    def __init__(self, counts):
        self.counts, self.began_s = counts, time.monotonic()
        self.samples = []

    def take(self):
        """Note the size, some seconds after the last time."""
        now_s = time.monotonic() - self.began_s
        if not self.samples or now_s - self.samples[-1][0] >= SAMPLE_S:
            self.samples.append((round(now_s), self.counts["steps"], resident_bytes()))

    def summary(self):
        """Size and steps after the first third of the time and at the end, medians of samples."""
        warm = [each[1:] for each in self.samples if each[0] >= self.samples[-1][0] / 3]
        tenth = max(1, len(warm) // 10)
        (steps, first), (all_steps, last) = np.median(
            [warm[:tenth], warm[-tenth:]], axis=1
        ).tolist()
        return {
            "after_a_third": first,
            "at_the_end": last,
            "steps_between": all_steps - steps,
            "bytes_per_step": round((last - first) / max(1, all_steps - steps), 1),
            "samples": self.samples,
        }


class Soak:
    """The engine, what it is asked, and what came of that."""

    def __init__(self, runner, models, folder, rng):
        from long_run import Run

        self.is_v2 = runner.__name__ == "long_v2"
        self.places = {name: place for name, place in runner.PLACES.items() if name not in LEFT_OUT}
        self.rng, self.folder, self.mode_file = rng, folder, folder / "mode"
        self.shape = eagle()
        self.asked = drawn_requests(rng, self.shape)
        run = Run(runner, models, folder, None, None)
        self.truths = run.truths("target", self.shape.longest, self.asked)
        self.engine = self._start(models, folder)
        self.load = Load(self.engine, self.asked, rng, self._judge)
        self.counts, self.faults, self.wrong = self.load.counts, Counter(), []
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
            "policy": written_policy(folder / "policy"),
            "cost": DEFAULT,
            "num_speculative_tokens": CAP,
            "ring_tokens": 1 << 14,
            "guard": True,
            "mode_file": str(self.mode_file),
        }
        return Engine(models, config, async_scheduling=self.is_v2)

    def _serve(self):
        """Serve by a policy that knows nothing, and by which nothing has failed yet."""
        from wandering import random_policy

        from adaspec.vllm.metrics import Counters
        from adaspec.vllm.recorder import recorder_of

        if self.recorder is not None:
            self.recorder.close()
        policy = random_policy(int(self.rng.integers(1 << 30)), True)
        traces = {"trace_dir": str(self.folder / "traces"), "max_trace_bytes": TRACE_BYTES}
        self.served = self.engine.put(policy, record_fraction=0.2, **traces)
        counters = Counters(None, {})
        self.recorder = recorder_of(self.served.serving, counters)
        self.served.observers.add(counters, self.recorder)

    def spell(self, ends_s, progress):
        """Some seconds of one load, one mode and at most one fault."""
        from long_faults import injected

        at_once = int(self.rng.choice(LOADS))
        mode = str(self.rng.choice(["serve", "serve", "serve", "off"]))
        fault = str(self.rng.choice(list(self.places))) if self.rng.random() < 0.4 else None
        self.counts["mode switches"] += self.mode_file.read_text() != mode
        self.mode_file.write_text(mode)
        self._trust(bool(self.rng.random() < 0.5))
        before = dict(self.served.breaker.counts)
        with injected(self.places.get(fault), self.served, self.recorder):
            while time.monotonic() < ends_s:
                self.load.step(at_once)
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
        from adaspec.vllm.scheduler import LAGS

        if content == self.content:
            return
        while self.load.running:
            self.load.step(0)
        self.content, timed = content, self.engine.scheduler.adaspec_timed
        timed._in_flight.clear()
        lag = LAGS["V2" if self.is_v2 else "V1"]
        timed.guard = Guard(lambda *shape: 1e6, lag) if content else self.guard

    def _judge(self, name, number, found):
        from long_judge import complaint

        said = complaint(self.asked[number], self.truths[number], found)
        if said:
            self.wrong.append(f"{name}: {said}")


def without_adaspec(runner, models, rng, minutes):
    """How an engine without a drafter grows under such a load."""
    from live_engine import Engine

    engine = Engine(models, None, async_scheduling=runner.__name__ == "long_v2")
    load = Load(engine, drawn_requests(rng, eagle()), rng, lambda *_: None)
    memory = MemorySamples(load.counts)
    ends_s = memory.began_s + 60 * minutes
    while time.monotonic() < ends_s:
        at_once, until_s = int(rng.choice(LOADS)), time.monotonic() + float(rng.uniform(*SPELL_S))
        while time.monotonic() < min(until_s, ends_s):
            load.step(at_once)
            memory.take()
    engine.close()
    return {"counts": dict(load.counts), "memory_bytes": memory.summary()}


def control(options):
    """`without_adaspec` in a process of its own, a third as long."""
    print("without adaspec first", flush=True)
    command = [sys.executable, __file__, options.runner, "--without-adaspec"]
    command += ["--minutes", str(options.minutes / 3), "--seed", str(options.seed)]
    command += ["--cache", str(options.cache)]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(said.splitlines()[-1])


def main():
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runner", choices=RUNNERS)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path(".pytest_cache/d/engine"))
    parser.add_argument("--without-adaspec", action="store_true", help="run the control alone")
    parser.add_argument("-o", "--out", type=Path, help="a folder for report.json")
    options = parser.parse_args()
    runner = importlib.import_module(RUNNERS[options.runner])
    from live_engine import models_in

    models, rng = models_in(options.cache), np.random.default_rng(options.seed)
    if options.without_adaspec:
        print(json.dumps(without_adaspec(runner, models, rng, options.minutes)))
        return 0
    plain = control(options)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(runner, models, Path(folder), rng)
        memory = MemorySamples(soak.counts)
        ends_s = memory.began_s + 60 * options.minutes
        while time.monotonic() < ends_s and not soak.wrong:
            spell_s = float(rng.uniform(*SPELL_S))
            soak.spell(min(time.monotonic() + spell_s, ends_s), memory.take)
            took_s = time.monotonic() - memory.began_s
            print(f"[{took_s:6.0f} s] {dict(soak.counts)}", flush=True)
        soak.recorder.close()
        soak.engine.close()
    ours = memory.summary()
    per_step = ours["bytes_per_step"] - max(0.0, plain["memory_bytes"]["bytes_per_step"])
    growth = per_step * ours["steps_between"] / ours["after_a_third"]
    if growth > GROWTH:
        soak.wrong.append(f"memory grew by {growth:.1%} more than without adaspec")
    document = {
        "runner": options.runner,
        "seed": options.seed,
        "minutes": round(took_s / 60, 1),
        "counts": dict(soak.counts),
        "spells with a fault": dict(soak.faults),
        "memory_bytes": ours,
        "memory_growth": round(ours["at_the_end"] / ours["after_a_third"] - 1, 4),
        "memory_growth_over_control": round(growth, 4),
        "without_adaspec": plain,
        "wrong": soak.wrong,
        "command": shlex.join(["python", "eval/soak/soak.py", *sys.argv[1:]]),
    }
    long = ("memory_bytes", "without_adaspec")
    print(json.dumps({k: v for k, v in document.items() if k not in long}, indent=1))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "report.json").write_text(json.dumps(document, indent=1) + "\n")
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
