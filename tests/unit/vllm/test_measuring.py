import logging
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from adaspec.cost.load import (
    H100_LLAMA_3_1_8B,
    cost_document,
    cost_from_document,
    load_cost,
    save_cost,
)
from adaspec.cost.model import StepShape
from adaspec.errors import CostError
from adaspec.vllm import measuring, plugin
from adaspec.vllm.measuring import (
    Steps,
    blocks_of_their_own,
    groups_of,
    measure,
    steps_of,
    time_steps,
)
from adaspec.vllm.options import Options
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE

H100 = H100_LLAMA_3_1_8B
CAPTURED = tuple(size for size in H100.tokens if size <= H100.largest_graph)
ON_GPU = Steps(CAPTURED, 8192, 256, 100_000, (0, 1, 3))
KINDS = sum(map(len, groups_of(ON_GPU)))


class Engine:
    """Answers as the first rank of an engine does whose steps take what the truth says."""

    steps = ON_GPU

    def __init__(self, truth=H100, seed=0, visit_s=0.0, slowdown=lambda now_s: 1.0):
        self.truth, self.visit_s, self.slowdown = truth, visit_s, slowdown
        self.draw, self.now_s = np.random.default_rng(seed), 0.0
        self.timed = []

    def ask(self, called, args=()):
        if called is steps_of:
            return [self.steps]
        assert called is time_steps
        kinds, repeats = args
        self.timed.extend(kinds)
        seconds = [self.step(kind) for kind in [kinds[0], *repeats * list(kinds)]][1:]
        self.now_s += self.visit_s
        return [[seconds[at :: len(kinds)] for at in range(len(kinds))]]

    def step(self, kind):
        rows = self.steps.rows(kind)
        shape = StepShape(rows, rows * kind.context, kind.tokens - rows, kind.forwards)
        step_s = self.truth.without_deciding().step_s(shape)
        step_s *= self.slowdown(self.now_s) * np.exp(0.01 * self.draw.normal())
        self.now_s += step_s
        return step_s

    def clock(self):
        return self.now_s

    def measured(self):
        return measure(self.ask, H100, self.clock)


def test_a_measured_table_loads_and_has_its_jump(tmp_path):
    engine = Engine()
    measured = engine.measured()
    assert len(measured.steps) == len(set(engine.timed)) == KINDS
    assert measured.fit.mean_error < 0.05
    assert measured.took_s == engine.now_s < measuring.ENOUGH_S + 1
    path = tmp_path / "cost.json"
    save_cost(measured.cost, path)
    cost = load_cost(path)
    assert cost.tokens[: len(CAPTURED)] == CAPTURED
    assert cost.largest_graph == 512
    table_s, true_s = cost.constants().table_s, H100.constants().table_s
    assert table_s[513] - table_s[512] == pytest.approx(true_s[513] - true_s[512], rel=0.1)
    sizes = [1, 64, 200, 512, 600, 1024]
    assert table_s[sizes] == pytest.approx(true_s[sizes], rel=0.04)
    assert cost.forward_s == pytest.approx(H100.forward_s, rel=0.05)
    assert cost.context_s == pytest.approx(H100.context_s, rel=0.05)


def test_it_is_over_in_time_with_what_was_measured_until_then():
    others = {"context_s": 1e-6, "forward_s": 0.1, "forward_per_row_s": 1e-4}
    document = cost_document(H100) | {"seconds": [100 * each for each in H100.seconds]} | others
    slow = Engine(truth=cost_from_document(document, "slow"))  # one step of each kind is timed
    for engine in (Engine(visit_s=4.0), slow):
        measured = engine.measured()
        assert measuring.LEAST_KINDS <= len(measured.steps) < KINDS
        assert measured.took_s < measuring.MOST_S + 5
        sizes = [1, 200, 512]
        true_s = engine.truth.constants().table_s[sizes]
        assert measured.cost.constants().table_s[sizes] == pytest.approx(true_s, rel=0.1)
    with pytest.raises(CostError, match=f"of {KINDS} kinds of step were timed in 60 s, too few"):
        Engine(visit_s=10.0).measured()


@pytest.mark.parametrize("seed", range(3))
def test_forwards_cost_what_they_cost_on_a_machine_that_is_slow_for_seconds(seed):
    """As beside a neighbour: half as long again in three of ten spells of a second and a half."""
    others = {"context_s": 2e-6, "forward_s": 0.004, "forward_per_row_s": 2e-4}
    per_token = {"tokens": [1, 8, 128], "seconds": [0.06, 0.082, 0.36], "largest_graph": 0}
    truth = cost_from_document(cost_document(H100) | per_token | others, "a processor")
    spells = 1.0 + 0.5 * (np.random.default_rng(seed).random(100) < 0.3)
    engine = Engine(truth, seed, slowdown=lambda now_s: spells[int(now_s / 1.5)])
    engine.steps = Steps((), 128, 16, 2000, (0, 1, 4))
    cost = engine.measured().cost
    forwards = [cost.forward_s + rows * cost.forward_per_row_s for rows in (1, 16)]
    assert forwards == pytest.approx([0.0042, 0.0072], rel=0.3)
    assert cost.constants().table_s[[1, 8]] == pytest.approx([0.06, 0.082], rel=0.4)


class TablesV2:
    def __init__(self):
        self.tables = [torch.zeros(4, 32, dtype=torch.int32)]

    def get_dummy_block_tables(self, num_reqs):
        return tuple(table[:num_reqs].zero_() for table in self.tables)


class TablesV1:
    def __init__(self):
        self.of_group = np.zeros((4, 32), np.int32)
        self.block_tables = [SimpleNamespace(get_numpy_array=lambda: self.of_group)]

    def clear(self):
        self.of_group[:] = 0


def test_rows_of_dummy_steps_read_blocks_of_their_own_and_leave_none_behind():
    config = SimpleNamespace(num_blocks=65)
    v2 = SimpleNamespace(speculator=None, kv_cache_config=config, block_tables=TablesV2())
    v1 = SimpleNamespace(
        kv_cache_config=config, input_batch=SimpleNamespace(block_table=TablesV1())
    )
    with blocks_of_their_own(v2), blocks_of_their_own(v1):
        (table,) = v2.block_tables.get_dummy_block_tables(4)
        for read in (table.numpy(), v1.input_batch.block_table.of_group):
            assert len(np.unique(read[:, :16])) == 64  # as many as there are, but for block 0
            assert read.min() == 1 and read.max() == 64
    assert not v2.block_tables.get_dummy_block_tables(4)[0].any()
    assert not v1.input_batch.block_table.of_group.any()


@pytest.mark.parametrize(
    ("measures", "backend", "said"),
    [
        (False, "mp", None),
        (True, "mp", "RuntimeError: out of memory"),
        (True, "external_launcher", "rank"),
    ],
)
def test_costs_that_were_named_or_cannot_be_measured_are_those_of_before(
    caplog, measures, backend, said
):
    base, executor, warm_up = cost_document(H100), Mock(), Mock()
    speculative = SimpleNamespace(**{OPTIONS_ATTRIBUTE: Options(costs=base, measures=measures)})
    executor.vllm_config.speculative_config = speculative
    executor.parallel_config.distributed_executor_backend = backend
    executor.collective_rpc.side_effect = RuntimeError("out of\nmemory")
    plugin._warm_up(warm_up, executor)
    assert warm_up.called
    assert executor.collective_rpc.called == (measures and backend == "mp")
    assert getattr(speculative, OPTIONS_ATTRIBUTE).costs == base
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == (said is not None)
    for warning in warnings:
        assert said in warning and "h100-llama-3.1-8b" in warning
