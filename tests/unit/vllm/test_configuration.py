"""Which scheduler an engine has, and what does not go with one of the operator's own."""

import sys
import types

import pytest
from msgspec import structs

from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import cost_document, load_cost
from adaspec.errors import ServingError
from adaspec.vllm import configuration, scheduler
from adaspec.vllm.options import Options
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE
from adaspec.vllm.workarounds import STOP_S, let_engines_write


def made(options, scheduler_cls=None, takes_v2=True):
    """The engine's config that comes of these options, where vLLM takes V2 or not."""

    def original(args):
        chosen = options
        if getattr(args, "adaspec_needs_v1", False):
            chosen = Options(runner="V1", mode_file=options.mode_file)
        return types.SimpleNamespace(
            speculative_config=types.SimpleNamespace(**{OPTIONS_ATTRIBUTE: chosen}),
            use_v2_model_runner=takes_v2,
            scheduler_config=types.SimpleNamespace(scheduler_cls=scheduler_cls),
        )

    # The operator has named the sizes of graphs.
    sizes = {"cudagraph_capture_sizes": [1, 2], "max_cudagraph_capture_size": None}
    args = types.SimpleNamespace(compilation_config=types.SimpleNamespace(**sizes), **sizes)
    before = set(vars(args))
    config = configuration.create_engine_config(original, args)
    assert set(vars(args)) == before
    return config.scheduler_config.scheduler_cls


GUARDED = Options(runner="V1", costs=cost_document(load_cost(DEFAULT)))


@pytest.mark.parametrize(
    ("options", "takes_v2", "expected"),
    [
        (GUARDED, True, scheduler.PATH),
        (structs.replace(GUARDED, guard=False), True, None),
        (structs.replace(GUARDED, mode="record"), True, None),
        (structs.replace(GUARDED, record_fraction=0.1), True, None),
        (structs.replace(GUARDED, record_fraction=0.0), True, scheduler.PATH),
        (Options(runner="V1"), True, None),
        (Options(runner="V1", mode_file="x"), True, scheduler.PATH),
        (Options(runner="V2"), True, scheduler.PATH),
        (Options(runner="V2"), False, None),
        (Options(runner="V2", mode_file="x"), False, scheduler.PATH),
    ],
)
def test_the_scheduler_is_ours_where_it_has_something_to_say(options, takes_v2, expected, caplog):
    assert made(options, takes_v2=takes_v2) == expected
    assert not caplog.records


@pytest.mark.parametrize("options", [GUARDED, Options(runner="V2")])
def test_another_scheduler_stays_and_has_neither_a_guard_nor_a_mode_file(options, caplog):
    assert made(options, scheduler_cls="their.own") == "their.own"
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
