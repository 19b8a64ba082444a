"""Policies that know nothing, and workers that decide at random: to take every way on V2."""

import dataclasses
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "unit" / "policy"))

from random_models import random_model

from adaspec.predict.tables import packed

CAP, NEURAL_CAP = 12, 4


def random_model_of(seed, evidence):
    nothing = np.empty(0, np.float32)
    tables = packed(np.empty(0, np.uint64), *[nothing] * 3, (0.5, 0.5, 1.0, 1.0), 1)
    return random_model(seed, tables, evidence=evidence)


def random_policy(seed, evidence, cap=CAP, memory=False):
    """A policy that knows nothing and expects something different everywhere."""
    from adaspec.policy.learned import LearnedPolicy

    model = random_model_of(seed, evidence)
    return LearnedPolicy("random", model, cap, NEURAL_CAP, memory=memory)


def without_numbers(policy):
    """The same policy, of which every prediction is NaN."""
    networks = {
        name: network._replace(bias_3=np.full_like(network.bias_3, np.nan))
        for name, network in policy.model.networks.items()
    }
    policy.model = dataclasses.replace(policy.model, networks=networks)
    return policy


def written_policy(folder, memory=False):
    """The folder of a random policy, which engines are started with."""
    from policy_fakes import manifest, written

    from adaspec.predict.fingerprint import feature_fingerprint

    model = random_model_of(3, True)
    made_of = manifest(
        fingerprint=feature_fingerprint(),
        sources=("ngram", "neural", "splice", *(["memory"] if memory else [])),
        evidence=("tokens", "confidences"),
        target=None,
        cap=CAP,
        neural_cap=NEURAL_CAP,
        static_tuned={},
        forwards={},
    )
    return str(
        written(
            folder,
            manifest=made_of,
            networks=model.network_arrays(),
            tables=model.table_arrays(),
        )
    )


class Wanderer:
    """Makes a worker decide at random all that the host decides."""

    def __init__(self, engine, seed=7, evidence=True, memory=False, **changes):
        from adaspec.vllm.v2.attachment import serve_by

        policy = random_policy(seed, evidence, memory=memory)
        self.worker = serve_by(engine.runner, policy, **changes)
        self.draw = np.random.default_rng(seed)
        self.host, self.taken = self.worker.host, dict.fromkeys(("ngram", "neural", "splice"), 0)
        self._decide = self.host.decide
        self.host.decide, self.host.holds_drafter = self.decide, self.holds_drafter
        self.host.budget, self.host.length = self.budget, self.length
        self.worker.observers.add(self)

    def decide(self, *facts):
        decided = self._decide(*facts)
        if decided.holds_neural.any():
            decided.forwards = int(self.draw.integers(0, NEURAL_CAP + 1))
        decided.price = float(self.draw.choice([0.0, 0.01, 0.1, 0.5]))
        decided.factors = self.draw.uniform(0.0, 1.15, 3)
        return decided

    def holds_drafter(self, running):
        return bool(self.draw.random() < 0.95)

    def budget(self, running, reading):
        return int(self.draw.integers(0, running * CAP + 1))

    def length(self):
        return int(self.draw.integers(0, CAP + 1))

    def verified(self, event):
        drafts = zip(event.drafted.tolist(), event.neural_drafted.tolist(), strict=True)
        for drafted, neural in drafts:
            if drafted:
                kind = "ngram" if not neural else "splice" if drafted > neural else "neural"
                self.taken[kind] += 1

    def __getattr__(self, event):
        if event.startswith("_"):
            raise AttributeError(event)
        return lambda *values: None


def check_sound(worker):
    assert not worker.breaker.counts, worker.breaker.counts
    assert not worker.breaker.off
