"""Policies that know nothing, and sessions that decide at random: to take every way."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
from msgspec import structs

# Programs that are not run by pytest import this file, too.
sys.path += [str(Path(__file__).parents[1] / "unit" / each) for each in ("policy", "vllm")]

from heard import Heard
from random_models import random_model, random_policy

from adaspec.cost.model import StepShape
from adaspec.policy.budget import PRICE, SETTINGS
from adaspec.predict.tables import no_tables

CAP, NEURAL_CAP = 12, 4


def serve_by(runner, policy, **changes):
    """Have another policy serve the requests that come from here on; returns its session.

    It is that of the runner but for these changes of its options.
    """
    from adaspec.vllm.session.session import Session

    before = runner.adaspec_session
    options = structs.replace(before.serving.options, **changes)
    serving = dataclasses.replace(before.serving, policy=policy, options=options)
    made = Session(serving, before._device, before._copy_stream)
    made.trims, made.unread = before.trims, before.unread
    if hasattr(runner, "speculator"):
        from adaspec.vllm.v2.speculator import warm_up

        warm_up(runner, made)
        runner.speculator.adaspec_session = made
        if runner.adaptive_verification is not None:
            runner.adaptive_verification.adaspec_session = made
    else:
        from adaspec.vllm.v1 import warm_up

        warm_up(made)
    runner.adaspec_session = made
    return made


def bound(session, times):
    """Let no step of six rows take longer than so many times one without drafts; what is told."""
    setup = session.serving.setup
    longest_s = times * setup.cost.step_s(StepShape(6, 600))
    setup = dataclasses.replace(setup, longest_s=longest_s)
    session.serving = dataclasses.replace(session.serving, setup=setup)
    session.take_costs(setup.cost)
    return Heard(session)["proposed"]


def without_numbers(policy):
    networks = {
        name: dataclasses.replace(network, bias_3=np.full_like(network.bias_3, np.nan))
        for name, network in policy.model.networks.items()
    }
    policy.model = dataclasses.replace(policy.model, networks=networks)
    return policy


def written_policy(folder):
    """The folder of a random policy, which engines are started with."""
    from policy_fakes import manifest, written

    from adaspec.predict.features import FEATURES_VERSION

    model = random_model(3, no_tables(), evidence=True)
    own = manifest(
        features=FEATURES_VERSION,
        sources=("ngram", "neural", "splice"),
        evidence=("tokens", "confidences"),
        target=None,
        cap=CAP,
        neural_cap=NEURAL_CAP,
        forwards={},
    )
    arrays = {"networks": model.network_arrays(), "tables": model.table_arrays()}
    return str(written(folder, manifest=own, **arrays))


class Wanderer:
    """Makes a session decide at random all that the host decides."""

    def __init__(self, engine, seed=7, evidence=True, **changes):
        self.session = engine.put(random_policy(seed, evidence), **changes)
        self.draw = np.random.default_rng(seed)
        self.taken = dict.fromkeys(("ngram", "neural", "splice"), 0)
        self.decider = self.session.decider
        self._decide = self.decider.decide
        for name in ("decide", "holds_drafter", "budget", "take_likeliest", "length"):
            setattr(self.decider, name, getattr(self, name))
        self.session.observers.add(self)

    def decide(self, *facts):
        decided = self._decide(*facts)
        if decided.holds_neural.any():
            decided.forwards = int(self.draw.integers(0, NEURAL_CAP + 1))
        decided.settings = self.draw.uniform(0.01, 1.15, SETTINGS)
        decided.settings[PRICE] = self.draw.choice([0.0, 0.01, 0.1, 0.5])
        return decided

    def holds_drafter(self, running):
        return bool(self.draw.random() < 0.99)

    def budget(self, running, reading):
        return int(self.draw.integers(0, running * CAP + 1))

    def take_likeliest(self, decided):
        self.decider._verify(decided, self.budget(len(decided.slots), 0))

    def length(self, trims):
        return int(self.draw.integers(0, CAP + 1))

    def verified(self, event):
        drafts = zip(event.drafted.tolist(), event.neural_drafted.tolist(), strict=True)
        for drafted, neural in drafts:
            if drafted:
                kind = "ngram" if not neural else "splice" if drafted > neural else "neural"
                self.taken[kind] += 1


def wander(serve, head, **changes):
    engine, _ = serve(head)
    return engine, Wanderer(engine, evidence=head is not None, **changes)


def breaking(monkeypatch, owner, name, every):
    """Let every so many calls fail until the test ends; returns the list of those that did."""
    failed, calls = [], [0]
    original = getattr(owner, name)

    def broken(*args, **kwargs):
        calls[0] += 1
        if calls[0] % every == 0:
            failed.append(calls[0])
            raise RuntimeError(f"{name} is broken")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, broken)
    return failed


def check_sound(session):
    assert not session.breaker.counts, session.breaker.counts
    assert not session.breaker.off
