"""Compile every kernel for an H100, where none is needed; prints one line per kernel.

With an argument `keys`, nothing is compiled: a line is printed for each kernel that steps of any
size would have compiled anew after a server's start, and one that counts the others. With `values`,
steps run on tensors that have none: whatever would wait for the device fails.

Run as a program: Triton must not have been imported for its interpreter.
"""

import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "policy"))

import torch
import triton
from random_models import random_model
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction, compute_cache_key

from adaspec.cost.load import H100_LLAMA_3_1_8B
from adaspec.kernels.batch import Batch
from adaspec.kernels.serving import LogitsReader
from adaspec.policy.protocol import LearnedPolicy, Setup
from adaspec.vllm.choice import Target
from adaspec.vllm.options import Options
from adaspec.vllm.session import drafting
from adaspec.vllm.session.drafting import Drafting
from adaspec.vllm.session.ring import ServedRing
from adaspec.vllm.v2 import trimming

SLOTS, CONTEXT, CAP, NEURAL_CAP, VOCABULARY = 40, 300, 12, 4, 50
CPU, META = torch.device("cpu"), torch.device("meta")
drafting.KERNELS_ON_CPU = True


class Server:
    """What a server launches, at its start and in its steps."""

    def __init__(self, evidence, has_ring, cap=CAP, device=CPU):
        model = random_model(3, evidence=evidence)
        policy = LearnedPolicy("random", model, cap, NEURAL_CAP)
        target = Target("random", VOCABULARY, None, "")
        ring = ServedRing(Options(ring_tokens=2048), target) if has_ring else None
        setup = Setup(H100_LLAMA_3_1_8B, cap, NEURAL_CAP, SLOTS, True, True)
        self.drafting = Drafting(policy, setup, VOCABULARY, device, ring)
        self.text = torch.ones((SLOTS, CONTEXT), dtype=torch.int32, device=device)
        self.counts = torch.full((SLOTS,), 100, dtype=torch.int32, device=device)
        self.holds = torch.ones(SLOTS, dtype=torch.bool, device=device)
        self.confidences = torch.zeros((NEURAL_CAP, SLOTS, 3), device=device)
        self.drafted = torch.ones((SLOTS, cap), dtype=torch.int64, device=device)
        self.reader = LogitsReader(self.confidences)
        ends = torch.zeros(SLOTS + 1, dtype=torch.int32)
        self.manager: Any = type("Manager", (), {})()
        vars(self.manager).update(
            num_bonus_tokens=1,
            query_start_loc=ends,
            _cu_num_logits=torch.zeros_like(ends),
            _confidence_probs=torch.zeros((SLOTS, cap)),
        )

    def start(self):
        """Warm up as `vllm.v2` does: by a step, by trimming, and by a forward of the head."""
        self.warm_up()
        trimming.take_over(self.manager, SimpleNamespace(), None)
        self.read(SLOTS, 0)

    def warm_up(self):
        slots = torch.zeros(1, dtype=torch.int64, device=self.text.device)
        self.drafting.warm_up(self._batch(slots, slots.int()))

    def read(self, rows, padding):
        logits = torch.zeros((rows, VOCABULARY + padding))[:, :VOCABULARY]
        self.reader.read(logits, torch.tensor(0), torch.zeros(VOCABULARY, dtype=torch.int64))

    def step(self, rows, forwards, limited):
        slots = torch.arange(rows, device=self.text.device)
        batch = self._batch(slots, slots.int())
        settings = torch.ones(3, dtype=torch.float64, device=slots.device)
        allowed = slots.new_zeros(rows, dtype=torch.int32) if limited else None
        drafted = self.drafted[:rows, :forwards].clone()
        step = self.drafting.begin(batch, settings)
        self.drafting.revise(step, drafted, self.confidences[:forwards, :rows])
        self.drafting.finish(step, drafted, self.confidences[:, :rows], allowed)

    def trim(self, rows, budget):
        names = [str(row) for row in range(rows)]
        lengths = dict.fromkeys(names, min(budget, 2))
        self.manager._batch_budget = lengths, dict.fromkeys(names, 1), budget
        self.manager.reallocate_drafts(names, torch.arange(rows))

    def _batch(self, slots, few):
        return Batch(
            slots=slots,
            tokens=self.text,
            context_tokens=self.counts,
            prompt_tokens=self.counts,
            holds_neural=self.holds,
            sampled=few,
            rejected=few,
        )


def compile_all():
    run, compiled = JITFunction.run, set()

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.hash not in compiled:
            compiled.add(kernel.hash)
            print(kernel.metadata.name, len(kernel.asm["cubin"]), flush=True)
        return kernel

    JITFunction.run = compile_only
    for evidence in (True, False):
        for has_ring in (False, True):
            server = Server(evidence, has_ring)
            server.start()
    for dtype in (torch.bfloat16, torch.float16):
        logits = torch.zeros((2 * NEURAL_CAP, 32_000), dtype=dtype)
        for step in (torch.tensor(0), torch.zeros(len(logits), dtype=torch.int32)):
            server.reader.read(logits, step)


def count_keys():
    known: set[str] = set()
    started = launched = 0
    serving = False

    def note_key(self, *args, grid, warmup, **kwargs):
        nonlocal launched
        *_, binder = self.device_caches[0]
        _, specialization, options = binder(*args, **kwargs)
        key = f"{self.__name__} {compute_cache_key({}, specialization, options)}"
        launched += 1
        if serving and key not in known:
            print(key, flush=True)
        known.add(key)

    JITFunction.run = note_key
    for evidence, has_ring, cap in product((True, False), (True, False), (1, CAP, 16)):
        known.clear()
        serving = False
        server = Server(evidence, has_ring, cap)
        server.start()
        started, serving = started + len(known), True
        for rows in (1, 2, 3, 15, 16, 17, 32, SLOTS):
            for padding in (0, 14):
                server.read(rows, padding)
            for forwards in range(min(NEURAL_CAP, cap) + 1):
                for budget in (0, 1, 2, 15, 16, 32):
                    server.step(rows, forwards, bool(budget % 2))
                    server.trim(rows, budget)
    print("counted", started, launched)


def run_without_values():
    JITFunction.run = lambda *args, **named: None
    torch.Tensor.pin_memory = lambda tensor: tensor  # memory is pinned for a GPU that is there
    for evidence, has_ring, limited in product((True, False), repeat=3):
        server = Server(evidence, has_ring, device=META)
        server.warm_up()
        for forwards in (0, 1, 3):
            server.step(5, forwards, limited)


if __name__ == "__main__":
    # What Triton asks about the GPU before it compiles.
    driver = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
    )
    triton.runtime.driver.set_active(driver)
    {"keys": count_keys, "values": run_without_values}.get(sys.argv[-1], compile_all)()
