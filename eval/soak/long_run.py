"""Random requests in random mixes through engines that decide at random, break, and recover.

    python eval/soak/long_v1.py --requests 2000 --seed 0
    python eval/soak/long_v2.py --requests 2000 --seed 0

Every request is asked of an engine without speculation first. Then waves of requests, each with a
policy or an injected fault of its own, go through engines of several shapes, one after another.
They come at random steps, in batches with each other, and some are given up. Prints how many
outputs differ (none may), and how often each source, reason, length, fault and kind of request came
up. The exit code is 1 where an output differs, or where something never came up in 2,000 requests
or more. The two commands are for vLLM's two model runners, and say what there is on each.
"""

import argparse
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from live_engine import Engine, models_in
from long_faults import LOSSES, injected
from long_judge import complaint, output_of
from long_requests import Draw, sampling

from adaspec.trace.reader import read_trace

WAVE = 25
LAST_ARRIVAL = 60


@dataclass
class Tally:
    """What came up, over all waves."""

    requests: Counter = field(default_factory=Counter)
    events: Counter = field(default_factory=Counter)
    lengths: Counter = field(default_factory=Counter)
    figures: Counter = field(default_factory=Counter)
    policies: Counter = field(default_factory=Counter)
    wrong: list = field(default_factory=list)

    EVENTS = (
        "chunks of prompts",
        "tokens from the prefix cache",
        "preemptions",
        "drafts cut by the scheduler",
        "switched off",
        "requests recorded",
    )


def waves_of(count, shapes, size=WAVE):
    """How many requests each wave holds, shape by shape."""
    waves = max(len(shapes), round(count / size))
    sizes = np.full(waves, count // waves)
    sizes[: count - sizes.sum()] += 1
    return [sizes[at :: len(shapes)].tolist() for at in range(len(shapes))]


def plans_of(rng, sizes, runner):
    """For each wave of each shape, the fault or loss that is injected in it, or None."""
    every = runner.FAULTS + LOSSES
    waiting = [every[at] for at in rng.permutation(len(every))]
    plans = [[None] * len(one) for one in sizes]
    places = [
        (shape, wave)
        for wave in range(max(map(len, sizes)))
        for shape in range(len(runner.SHAPES))
        if wave % 5 in (1, 3) and wave < len(sizes[shape])
    ]
    for shape, wave in places:
        has_head = runner.SHAPES[shape].head is not None
        fits = [x for x in waiting if has_head or x not in runner.NEEDS_HEAD]
        if not fits:
            continue
        plans[shape][wave] = fits[0]
        waiting.remove(fits[0])
        if not waiting:
            waiting = [every[at] for at in rng.permutation(len(every))]
    return plans


class Run:
    """Waves through one engine after another."""

    def __init__(self, runner, models, folder, tally, say):
        self.runner, self.models, self.folder = runner, models, folder
        self.tally, self.say = tally, say
        self.waves = 0

    def truths(self, target, longest, asked):
        """Outputs without speculation, request by request; None for those that are sampled."""
        engine = Engine(self.models, None, target, max_num_seqs=16, max_model_len=longest)
        greedy = [one for one in asked if one.greedy]
        found = engine.llm.generate(
            [{"prompt_token_ids": one.prompt} for one in greedy],
            [sampling(one.params) for one in greedy],
            use_tqdm=False,
        )
        engine.close()
        told = iter(found)
        return [output_of(next(told).outputs[0]) if one.greedy else None for one in asked]

    def shape(self, shape, waves, plan, rng, expected):
        """All waves of one shape."""
        engine = self.runner.start(self.models, shape, self.folder)
        for asked, fault in zip(waves, plan, strict=True):
            try:
                self._wave(engine, shape, asked, fault, rng, expected)
            except Exception as error:
                self._wrong(f"{shape.name}, {fault or 'no fault'}: the engine ended: {error!r}")
                traceback.print_exc()
                engine.close()
                engine = self.runner.start(self.models, shape, self.folder)
        self.tally.events["preemptions"] += engine.preempted
        engine.close()

    def _wave(self, engine, shape, asked, fault, rng, expected):
        from adaspec.vllm.metrics import FIGURES, Counters
        from adaspec.vllm.recorder import recorder_of

        has_head = shape.head is not None
        self.waves += 1
        changes = {
            "mode": "serve",
            "record_fraction": 0.0,
            "trace_dir": str(self.folder / f"wave-{self.waves}"),
            "max_trace_bytes": 1 if fault == "limit" else 1 << 30,
        }
        if fault in LOSSES or (has_head and fault is None and rng.random() < 0.25):
            changes["record_fraction"] = 0.4
        served, policy = self.runner.serve_by(engine, rng, has_head, fault, **changes)
        counters = Counters(None, {})
        recorder = recorder_of(served.serving, counters)
        served.observers.add(counters, recorder, Lengths(self.tally))
        self.runner.count_chunks(served, self._chunk)
        with injected(self.runner.PLACES.get(fault), served, recorder):
            found = serve(engine, asked, self.tally)
            engine.greedy([[5, 6, 7]], 2)  # whoever left is noticed in the next step
            recorder.close()
        self._judge(shape, fault, asked, expected, found)
        if fault is None and served.breaker.counts:
            self._wrong(f"{shape.name}: failed by itself: {dict(served.breaker.counts)}")
        for name in FIGURES:
            self.tally.figures[name] += counters[name]
        self.tally.events["switched off"] += served.breaker.off
        if recorder.output.folder.exists():
            self.tally.events["requests recorded"] += read_trace(recorder.output.folder).rows
        self.tally.policies[f"broken: {fault}" if fault else policy] += 1

    def _judge(self, shape, fault, asked, expected, found):
        for one in asked:
            for kind in one.kinds:
                self.tally.requests[kind] += 1
            said = complaint(one, expected.get(one.name), found[one.name])
            if said:
                where = f"{shape.name}, {fault or 'no fault'}, {one.name} {one.kinds}"
                self._wrong(f"{where}: {said}")

    def _chunk(self, count):
        self.tally.events["chunks of prompts"] += count

    def _wrong(self, said):
        self.tally.wrong.append(said)
        self.say(f"MISMATCH {said}")


def waves_for(shape, sizes, seed):
    """Everything that a shape is asked, wave by wave."""
    draw = Draw(np.random.default_rng(seed), shape.longest)
    return [[draw.request(LAST_ARRIVAL) for _ in range(size)] for size in sizes]


def truths_of(run, waves):
    """Outputs without speculation of every shape's requests, by name; one engine per length."""
    shapes = run.runner.SHAPES
    found = [{} for _ in shapes]
    for kind in sorted({(shape.target, shape.longest) for shape in shapes}):
        alike = [at for at, each in enumerate(shapes) if (each.target, each.longest) == kind]
        asked = [(at, one) for at in alike for wave in waves[at] for one in wave]
        truths = run.truths(*kind, [one for _, one in asked])
        for (at, one), truth in zip(asked, truths, strict=True):
            found[at][one.name] = truth
    return found


class Lengths:
    """Counts drafts by their length, and those that were cut."""

    def __init__(self, tally):
        self._tally, self._proposed = tally, {}

    def proposed(self, proposed):
        """Note what is proposed for each request."""
        self._proposed = dict(zip(proposed.requests, map(len, proposed.proposed), strict=True))
        for length in self._proposed.values():
            self._tally.lengths[length] += 1

    def verified(self, event):
        """Count what was not verified of it."""
        for row, name in enumerate(event.step.requests):
            if event.known[row] and event.drafted[row] < self._proposed.get(name, 0):
                self._tally.events["drafts cut by the scheduler"] += 1


def serve(engine, asked, tally):
    """Every request's outputs, from a wave that comes and goes as it was drawn."""
    core = engine.llm.llm_engine
    coming = sorted(asked, key=lambda one: one.arrives)
    leaving, found, step = {}, {one.name: {} for one in asked}, 0
    while coming or core.has_unfinished_requests():
        if not core.has_unfinished_requests():
            step = max(step, coming[0].arrives)
        while coming and coming[0].arrives <= step:
            one = coming.pop(0)
            core.add_request(one.name, {"prompt_token_ids": one.prompt}, sampling(one.params))
            if one.abort_after is not None:
                leaving[one.name] = step + one.abort_after
        gone = [name for name, at in leaving.items() if at <= step]
        if gone:
            core.abort_request(gone)
            for name in gone:
                del leaving[name]
        for out in core.step():
            # Of several samples only those that went on are told in a step.
            found[out.request_id] |= {each.index: output_of(each) for each in out.outputs}
            if out.finished:
                leaving.pop(out.request_id, None)
                tally.events["tokens from the prefix cache"] += out.num_cached_tokens or 0
        step += 1
    return {name: list(outputs.values()) for name, outputs in found.items()}


def table(tally, runner, whole):
    """The lines that are printed, and what never came up although it must in a whole run."""
    figures = tally.figures
    sections = {
        "requests": {kind: tally.requests[kind] for kind in sorted(tally.requests)},
        "events": {name: tally.events[name] for name in Tally.EVENTS},
        "tokens accepted": {
            source: int(figures[f"accepted_tokens/{source}"])
            for source in ("ngram", "neural", "splice")
        },
        "drafts by length": {str(at): tally.lengths[at] for at in range(runner.CAP + 1)},
        "drafter forwards": {
            kind: int(figures[f"drafter_forwards/{kind}"]) for kind in ("draft", "keep_alive")
        },
        "faults by stage": {name: int(figures[f"faults/{name}"]) for name in runner.STAGES},
        "trace rows not written": {name: int(figures[f"dropped_rows/{name}"]) for name in LOSSES},
        "waves": dict(sorted(tally.policies.items())),
    }
    lines, never = [], []
    for title, counts in sections.items():
        lines.append(f"{title}")
        lines += [f"  {name:<44}{count:>10,}" for name, count in counts.items()]
        named = {f"{title}: {name}": count for name, count in counts.items()}
        never += [name for name, count in named.items() if not count and name not in runner.NEVER]
    asked = sum(count for kind, count in tally.requests.items() if kind.startswith("prompt"))
    lines.append(f"{asked} requests, {len(tally.wrong)} mismatches")
    return lines, never if whole else []


def main(runner, arguments=None):
    """The run that a runner's module asks for; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wave", type=int, default=WAVE, help="requests of one policy or fault")
    parser.add_argument("--cache", type=Path, default=Path(".pytest_cache/d/engine"))
    asked = parser.parse_args(arguments)
    began = time.monotonic()

    def say(line):
        print(f"[{time.monotonic() - began:6.0f} s] {line}", flush=True)

    models, shapes = models_in(asked.cache), runner.SHAPES
    rng = np.random.default_rng(asked.seed)
    sizes = waves_of(asked.requests, shapes, asked.wave)
    plans = plans_of(rng, sizes, runner)
    tally = Tally()
    say(f"{asked.requests} requests in {sum(map(len, sizes))} waves, seed {asked.seed}")
    with tempfile.TemporaryDirectory() as folder:
        run = Run(runner, models, Path(folder), tally, say)
        waves = [waves_for(shape, sizes[at], [asked.seed, at]) for at, shape in enumerate(shapes)]
        expected = truths_of(run, waves)
        say("what is said without speculation is known")
        for shape, mine, plan, known in zip(shapes, waves, plans, expected, strict=True):
            run.shape(shape, mine, plan, rng, known)
            count = sum(map(len, mine))
            say(f"{shape.name}: {count} requests, {len(tally.wrong)} mismatches so far")
    lines, never = table(tally, runner, whole=asked.requests >= 2000)
    print("\n".join(lines))
    for each in never:
        print(f"NEVER CAME UP  {each}")
    return 1 if tally.wrong or never else 0
