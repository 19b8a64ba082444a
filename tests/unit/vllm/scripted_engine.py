"""An engine that waits for its drafts, by a script: it verifies them against recorded texts."""

import types

import numpy as np
import torch
from random_recordings import NEURAL_CAP, random_requests

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.policy.protocol import Setup
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.choice import Target
from adaspec.vllm.options import Options
from adaspec.vllm.session.requests import Rows, RunningRequest
from adaspec.vllm.session.served import Serving
from adaspec.vllm.session.session import Session
from adaspec.vllm.v1.attachment import outcome_of
from adaspec.vllm.v1.texts import Texts

COST = H100_LLAMA_3_1_8B.without_deciding()
CAP = 12


def session_of(policy, rows, mode="serve", stop_if_slow=False, vocabulary=1000, **more):
    setup = Setup(COST, CAP, NEURAL_CAP, rows, shows_tokens=True, shows_confidences=True)
    options = Options(mode=mode, num_speculative_tokens=NEURAL_CAP, **more)
    serving = Serving(policy, options, setup, Target("t", vocabulary, 64, "t"))
    return Session(serving, torch.device("cpu"), None, stop_if_slow)


class ScriptedEngine:
    """Verifies drafts against recorded texts; drafts what the recording drafted."""

    def __init__(
        self, requests, session, shortest=None, can_draft=lambda step: True, recording=None
    ):
        """`shortest`: a draft may not reach that output token of any request.

        How sure the drafter is says the `recording` of the requests, where there is one.
        """
        self.evidence = {}
        if recording is not None:
            offset, sure = recording.columns.offset, recording.arrays.confidences
            self.evidence = {at: sure[offset[at] :] for at in range(len(requests))}
        self.requests, self.session, self.shortest = requests, session, shortest
        self.can_draft = can_draft
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

    def step(self):
        """Verify, end those whose output is whole, and draft for all others."""
        self.steps += 1
        sampled, verified = {}, {}
        for at in self.running:
            output, here = self.requests[at].output, self.position[at]
            taken = 0
            for token in self.drafts[at]:
                if here + taken >= len(output) or output[here + taken] != token:
                    break
                taken += 1
            sampled[at], verified[at] = output[here : here + taken + 1], len(self.drafts[at])
        leaving, self.ended = self.ended, []
        self.session.end(leaving)
        self.texts.leave(leaving)
        known = {at: len(self.requests[at].prompt) + self.position[at] for at in self.running}
        for at in self.running:
            self.position[at] += len(sampled[at])
        whole = [at for at in self.running if self.position[at] >= len(self.requests[at].output)]
        self.running = [at for at in self.running if at not in whole]
        self.ended = [self.names[at] for at in whole]
        if self.running:
            self.draft(sampled, verified, known)

    def draft(self, sampled, verified, known):
        session, count = self.session, len(self.running)
        rows = self.rows(sampled, verified, known)
        forwards = session.begin(rows, self.batch_of(rows)) or 0
        if not self.can_draft(self.steps):
            forwards = 0
        drafted = torch.zeros((count, forwards), dtype=torch.int64)
        confidences = torch.full((forwards, count, len(CONFIDENCES)), -0.5)
        for row, at in enumerate(self.running):
            request, here = self.requests[at], self.position[at]
            drafted[row] = torch.tensor(request.drafted[here][:forwards])
            sure = self.evidence.get(at)
            if sure is not None:
                confidences[:, row] = torch.from_numpy(sure[here][:forwards])
        session.finish(drafted, confidences)
        for at, tokens in zip(self.running, session.proposed(), strict=True):
            self.drafts[at] = tokens
        session.tell()

    def batch_of(self, rows):
        return lambda holds: self.texts.batch(rows.slots, holds, rows.outcome)

    def rows(self, sampled, verified, known):
        names = [self.names[at] for at in self.running]
        texts = [self.requests[at].prompt + self.requests[at].output for at in self.running]
        tokens = np.full((len(texts), max(map(len, texts))), -7, np.int32)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = text
        prompts = np.array([len(self.requests[at].prompt) for at in self.running], np.int32)
        before = np.array([known[at] for at in self.running], np.int32)
        drafted = np.array([verified[at] for at in self.running], np.int32)
        outcome = outcome_of(before, [sampled[at] for at in self.running], drafted)
        for row, at in enumerate(self.running):
            if not self.session.requests.runs(names[row]):
                prompt = tokens[row, : prompts[row]]
                output = texts[row][prompts[row] : known[at]]
                self.session.admit(
                    RunningRequest(names[row], prompt, output, self.params[at], None)
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
        ignore_eos=True,
        temperature=temperature,
        extra_args=extra_args,
    )


def repetitive(count, tokens=60):
    """Requests whose text repeats, and whose drafter is always right."""
    requests = random_requests(7, count, tokens=True, output_tokens=(tokens, tokens + 1))
    for request in requests:
        text = [at % 5 for at in range(400)]
        request.prompt[:], request.output[:] = text[:20], text[20 : 20 + tokens]
        for at in range(len(request.drafted)):
            request.drafted[at] = text[20 + at : 20 + at + NEURAL_CAP]
    return requests
