import sys
import types

import pytest
from msgspec import structs
from refusals import refusal

from adaspec.cost.load import DEFAULT, cost_document, load_cost
from adaspec.errors import ServingError
from adaspec.vllm import configuration, plugin, scheduler
from adaspec.vllm.options import Options, read_options
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE, SAMPLING_PARAMS, STOP_S, let_engines_write
from adaspec.vllm.session.requests import is_served

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


def test_what_is_not_written_is_left_open_and_what_says_how_a_drafter_is_loaded_handed_on():
    options = read_options({"method": "adaspec", "draft-tensor-parallel-size": 2})
    assert options.model is options.policy is options.num_speculative_tokens is None
    assert options.mode == "serve"
    assert options.guard
    assert options.passed == {"draft_tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"mode": "sreve"}, "did you mean 'serve'"),
        ({"draft_method": "eagle"}, "a model as well"),
        ({"parallel_drafting": 1}, "unknown key 'parallel_drafting'"),
        ({"modle": 1, "polciy": 1}, "did you mean 'model'?; unknown key 'polciy'; did you"),
        ({"mode": "record"}, "trace_dir"),
        ({"record_fraction": 0.1}, "trace_dir"),
        ({"trace_dir": "x"}, "trace_dir is 'x': give record_fraction as well"),
        ({"mode": "record", "trace_dir": "x", "record_fraction": 0}, "nothing is recorded"),
        (
            {"mode": "record", "trace_dir": "x", "mode_file": "y"},
            "mode_file is 'y': give it without mode 'record'",
        ),
        ({"baseline": "eagle:3", "guard": False}, "give guard true, which compares with it"),
        (
            {"baseline": "eagle:3", "trace_dir": "x", "record_fraction": 0.1},
            "baseline is 'eagle:3': give it where nothing is recorded",
        ),
    ],
)
def test_what_is_wrong_or_does_not_go_together_is_said_in_one_line(config, says):
    said = refusal(ServingError, read_options, {"method": "adaspec", **config})
    assert says in said
    assert len(said) < 800


def test_a_fraction_of_the_requests_that_do_not_say_off_is_served():
    served = [is_served(f"r{at}", None, 0.25) for at in range(4000)]
    assert served == [is_served(f"r{at}", None, 0.25) for at in range(4000)]
    assert 900 < sum(served) < 1100
    assert not is_served("r", None, 0.0)
    assert not is_served("r", types.SimpleNamespace(extra_args={"adaspec": "off"}), 1.0)


def test_wrong_arguments_are_refused_where_adaspec_serves_and_there_alone():
    class Params:
        def __init__(self, **extra_args):
            self.extra_args = extra_args

        def verify(self, model_config, speculative_config, tokenizer=None):
            if model_config is None:
                raise ValueError("vLLM's own")

    plugin.patch(SAMPLING_PARAMS, types.SimpleNamespace(SamplingParams=Params))
    ours = types.SimpleNamespace(**{OPTIONS_ATTRIBUTE: object()})
    Params(adaspec="off", other=3).verify("model", ours)
    Params(adaspec="of").verify("model", object(), tokenizer=None)
    for configs, named in ((("model", ours), {}), (("model",), {"speculative_config": ours})):
        for extra_args, says in (
            ({"adaspec": "of"}, "adaspec is 'of': give 'off', or leave it out"),
            ({"adaspec": ["off"]}, "give 'off'"),
            ({"adaspec_of": "off"}, "unknown argument 'adaspec_of'; did you mean 'adaspec'"),
        ):
            with pytest.raises(Exception, match=says):
                Params(**extra_args).verify(*configs, **named)
    with pytest.raises(ValueError, match="vLLM's own"):
        Params(adaspec="of").verify(None, ours)
