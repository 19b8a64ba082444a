"""Which scheduler an engine has, and what does not go with one of the operator's own."""

import sys
import types

import pytest
from msgspec import structs

from adaspec.cost.load import DEFAULT, cost_document, load_cost
from adaspec.errors import ServingError
from adaspec.vllm import configuration, scheduler
from adaspec.vllm.options import Options
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE, STOP_S, let_engines_write

CPU_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"


def made(options, scheduler_cls=None, takes_v2=True, worker_cls=CPU_WORKER):
    """The engine's config that comes of these options, where vLLM takes V2 or not."""

    def original(args):
        chosen = options
        if getattr(args, "adaspec_needs_v1", False):
            chosen = Options(runner="V1", mode_file=options.mode_file)
        return types.SimpleNamespace(
            speculative_config=types.SimpleNamespace(**{OPTIONS_ATTRIBUTE: chosen}),
            use_v2_model_runner=takes_v2,
            scheduler_config=types.SimpleNamespace(scheduler_cls=scheduler_cls),
            parallel_config=types.SimpleNamespace(worker_cls=worker_cls),
        )

    # The operator has named the sizes of graphs.
    sizes = {"cudagraph_capture_sizes": [1, 2], "max_cudagraph_capture_size": None}
    args = types.SimpleNamespace(compilation_config=types.SimpleNamespace(**sizes), **sizes)
    before = set(vars(args))
    config = configuration.create_engine_config(original, args)
    assert set(vars(args)) == before
    return config


GUARDED = Options(runner="V1", costs=cost_document(load_cost(DEFAULT)))


@pytest.mark.parametrize("takes_v2", [True, False])
def test_scheduler_and_workers_are_ours_and_the_engine_on_the_runner_that_vllm_takes(takes_v2):
    config = made(Options(runner="V2"), takes_v2=takes_v2)
    options = getattr(config.speculative_config, OPTIONS_ATTRIBUTE)
    assert options.runner == ("V2" if takes_v2 else "V1")
    assert config.scheduler_config.scheduler_cls == scheduler.PATH
    assert config.parallel_config.worker_cls == "adaspec.vllm.worker.CPUWorker"


def test_workers_of_the_operators_own_are_refused():
    with pytest.raises(ServingError, match=r"--worker-cls their\.own"):
        made(GUARDED, worker_cls="their.own")


@pytest.mark.parametrize("options", [GUARDED, Options(runner="V2")])
def test_another_scheduler_stays_and_has_neither_a_guard_nor_a_mode_file(options, caplog):
    config = made(options, scheduler_cls="their.own")
    assert config.scheduler_config.scheduler_cls == "their.own"
    assert ("no guard" in caplog.text) == options.is_guarded
    with pytest.raises(ServingError, match="mode_file does not go with --scheduler-cls"):
        made(structs.replace(options, mode_file="x"), scheduler_cls="their.own")


@pytest.mark.parametrize(
    ("asked", "timeout", "waited"), [(0, 0, STOP_S), (0, None, None), (30, 12.5, 12.5), (30, 0, 0)]
)
def test_engines_that_are_stopped_have_time_to_write(monkeypatch, asked, timeout, waited):
    """Where a `--shutdown-timeout` was asked for, that holds, and what is left of it."""
    told = []

    class Manager:
        _request_shutdown_timeout = asked

        def shutdown(self, timeout=None):
            told.append(timeout)

    module = types.SimpleNamespace(CoreEngineProcManager=Manager)
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.utils", module)
    let_engines_write()
    let_engines_write()
    Manager().shutdown(timeout=timeout)
    assert told == [waited]
