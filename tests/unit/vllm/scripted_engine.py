"""An engine that waits for its drafts, by a script: it verifies them against recorded texts."""

import dataclasses
import types

import numpy as np
import torch
from heard import Heard
from random_models import random_policy
from random_recordings import NEURAL_CAP
from reference import Request, common

from adaspec.cost.load import H100_LLAMA_3_1_8B
from adaspec.policy.protocol import Setup
from adaspec.policy.static import parse_policy
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.choice import Serving, Target
from adaspec.vllm.metrics import Counters
from adaspec.vllm.options import Options
from adaspec.vllm.session.report import StepReport
from adaspec.vllm.session.requests import Rows, RunningRequest
from adaspec.vllm.session.session import Session
from adaspec.vllm.v1 import Texts, outcome_of

COST = H100_LLAMA_3_1_8B.without_deciding()
CAP = 12


def policy_of(name, seed=3):
    """A static rule, or one that is `learned`, from nothing."""
    if name == "learned":
        drawn = int(np.random.default_rng(seed).integers(1 << 30))
        return random_policy(drawn, True, CAP, NEURAL_CAP)
    return parse_policy(name)


def engine_of(
    policy,
    requests,
    rows=None,
    recording=None,
    vocabulary=1000,
    in_one_pass=False,
    longest_s=None,
    **more,
):
    """An engine of these requests, with a session of its own, which may have room for more."""
    policy = policy_of(policy) if isinstance(policy, str) else policy
    rows = rows or len(requests)
    heads = {"in_one_pass": in_one_pass, "longest_s": longest_s}
    setup = Setup(COST, CAP, NEURAL_CAP, rows, True, True, **heads)
    options = Options(num_speculative_tokens=NEURAL_CAP, **more)
    serving = Serving(policy, options, setup, Target("t", vocabulary, 64, "t"))
    session = Session(serving, torch.device("cpu"), None)
    return ScriptedEngine(requests, session, recording)


class ScriptedEngine:
    """Verifies drafts against recorded texts; drafts what the recording drafted.

    What its session tells is `heard` and counted.
    """

    shortest = None
    """A draft may not reach that output token of any request."""

    def __init__(self, requests, session, recording=None):
        """How sure the drafter is says the `recording` of the requests, where there is one."""
        self.requests, self.session, self.recording = requests, session, recording
        self.heard, self.counters = Heard(session), Counters(None, {})
        session.observers.add(self.counters)
        self.can_draft = lambda step: True
        self.running = list(range(len(requests)))
        self.names = [f"r{at}" for at in self.running]
        self.position = dict.fromkeys(self.running, 0)
        self.drafts = {at: [] for at in self.running}
        self.params = {at: params_of() for at in self.running}
        self.texts = Texts(session.serving.setup.slots, 500)
        self.ended, self.steps = [], 0

    def run(self, most_steps=500):
        while self.running and most_steps:
            most_steps -= 1
            self.step()
        return self

    def prepare(self):
        """Draft for all, as an async engine does: what comes of it is not asked for."""
        came = [(len(self.requests[at].prompt), [7], 0) for at in self.running]
        rows = self.rows(came)
        self.begin(dataclasses.replace(rows, outcome=None), rows.outcome)

    def step(self):
        """Verify, end those whose output is whole, and draft for all others."""
        self.steps += 1
        came = {}
        for at in self.running:
            request, here = self.requests[at], self.position[at]
            taken = common(self.drafts[at], request.output[here:])
            sampled = request.output[here : here + taken + 1]
            came[at] = len(request.prompt) + here, sampled, len(self.drafts[at])
            self.position[at] += len(sampled)
        self.session.end(self.ended)
        self.texts.leave(self.ended)
        whole = [at for at in self.running if self.position[at] >= len(self.requests[at].output)]
        self.running = [at for at in self.running if at not in whole]
        self.ended = [self.names[at] for at in whole]
        if self.running:
            self.draft(self.rows([came[at] for at in self.running]))

    def draft(self, rows):
        self.begin(rows, rows.outcome)
        session, count = self.session, len(self.running)
        for at, tokens in zip(self.running, session.proposed(count), strict=True):
            self.drafts[at] = tokens
        session.tell()

    def begin(self, rows, outcome):
        """A step's drafting, as it was recorded, behind what came of the one before."""

        def batch(holds):
            return self.texts.batch(rows.slots, holds, outcome)

        session, count = self.session, len(self.running)
        forwards = session.begin(rows, batch)
        if not self.can_draft(self.steps):
            forwards = 0
        drafted = torch.zeros((count, forwards), dtype=torch.int64)
        confidences = torch.full((forwards, count, len(CONFIDENCES)), -0.5)
        for row, at in enumerate(self.running):
            request, here = self.requests[at], self.position[at]
            drafted[row] = torch.tensor(request.drafted[here][:forwards])
            if self.recording is not None:
                sure = self.recording.confidences[self.recording.columns.offset[at] + here]
                confidences[:, row] = torch.from_numpy(sure[:forwards])
        session.finish(drafted, confidences)

    def rows(self, came):
        """The batch, by what was known of each request, what came, and how much it verified."""
        known, sampled, verified = zip(*came, strict=True)
        names = [self.names[at] for at in self.running]
        texts = [self.requests[at].prompt + self.requests[at].output for at in self.running]
        tokens = np.full((len(texts), max(map(len, texts))), -7, np.int32)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = text
        prompts = np.array([len(self.requests[at].prompt) for at in self.running], np.int32)
        drafted = np.array(verified, np.int32)
        outcome = outcome_of(np.array(known, np.int32), sampled, drafted)
        for row, at in enumerate(self.running):
            if not self.session.requests.runs(names[row]):
                prompt = tokens[row, : prompts[row]]
                output = texts[row][prompts[row] : known[row]]
                self.session.admit(
                    RunningRequest(names[row], prompt, output, self.params[at], False)
                )
        slots = self.texts.slots_of(names)
        self.texts.write(slots, prompts, tokens, outcome)
        left = None
        if self.shortest is not None:
            left = np.array([self.shortest - 1 - self.position[at] for at in self.running])
        return Rows(
            requests=names,
            slots=slots,
            prompt_tokens=prompts,
            context_tokens=outcome.context,
            samples=outcome.sampled > 0,
            reads=np.zeros(len(names), np.bool_),
            verified=drafted,
            outcome=outcome,
            room=None if left is None else np.maximum(left, 0).astype(np.int32),
        )


def params_of(temperature=1.0, **extra_args):
    """Sampling parameters with these extra arguments, by which no output ends."""
    return types.SimpleNamespace(
        max_tokens=None,
        min_tokens=0,
        stop_token_ids=None,
        eos_token_id=None,
        temperature=temperature,
        extra_args=extra_args,
    )


def repetitive(count, tokens=60):
    """Requests whose text repeats, and whose drafter is always right."""
    text = [at % 5 for at in range(20 + tokens + NEURAL_CAP)]
    right = [NEURAL_CAP] * tokens
    drafted = [text[20 + at : 20 + at + NEURAL_CAP] for at in range(tokens)]
    return [Request(text[:20], text[20 : 20 + tokens], right, drafted) for _ in range(count)]


def report_of(survival, neural):
    """A report of drafts with these chances, of which so many tokens are the neural drafter's."""
    survival = np.array(survival, np.float64)
    rows, cap = survival.shape
    length = (survival > 0).sum(axis=1).astype(np.int32)
    ones = np.ones(rows, np.int32)
    return StepReport(
        context=20 * ones,
        sampled=ones,
        rejected=0 * ones,
        neural=np.array(neural, np.int32),
        offered=length,
        gain=np.zeros((rows, 3)),
        emitted=np.ones((rows, cap + 1), np.int32),
        tokens=np.ones((rows, cap), np.int32),
        survival=survival,
        drafted=np.zeros((rows, 0), np.int32),
        confidences=np.zeros((rows, 0, 3), np.float32),
    )
