import dataclasses
import pickle
import subprocess
import sys

import pytest
from refusals import refusal

from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.errors import ServingError
from adaspec.vllm.options import read_options


def test_what_is_not_written_is_left_open_and_what_says_how_a_drafter_is_loaded_handed_on():
    options = read_options({"method": "adaspec", "draft-tensor-parallel-size": 2})
    assert options.model is options.policy is options.num_speculative_tokens is None
    assert options.mode == "serve"
    assert options.guard
    assert options.passed == {"draft_tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("mode", "sreve", "did you mean 'serve'"),
        ("num_speculative_tokens", 129, "from 1 to 128"),
        ("num_speculative_tokens", True, "from 1"),
        ("policy", 7, "policy is 7"),
        ("draft_method", "egale", "did you mean 'eagle'? (known: eagle, eagle3, mtp, draft_model"),
        ("draft_method", "eagle", "a model as well"),
        ("parallel_drafting", True, "does not go with"),
        ("Trace-Dir", "x", "did you mean 'trace_dir'"),
        ("modle", "x", "did you mean 'model'"),
        ("", 1, "unknown key '' for method 'adaspec'. Known:"),
        ("x" * 5000, 1, "xxx"),
        (5, 1, "5 is no key"),
        ("trace_dir", "a\0b", "one line"),
        ("record_fraction", float("nan"), "0 to 1"),
        ("max_trace_bytes", 1 << 63, "max_trace_bytes is"),
        ("sampling", {"temperature": float("nan")}, "JSON"),
        ("guard", "on", "true or false"),
        ("max_drafted_tokens", 2.5, "from 1"),
        ("log_decisions_per_s", -1, "0 to 1000"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(key, value, says):
    said = refusal(ServingError, read_options, {"method": "adaspec", key: value})
    assert says in said
    assert len(said) < 600


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"mode": "record"}, "trace_dir"),
        ({"record_fraction": 0.1}, "trace_dir"),
        ({"mode": "record", "trace_dir": "x", "record_fraction": 0}, "nothing is recorded"),
        (
            {"mode": "record", "trace_dir": "x", "mode_file": "y"},
            "mode_file is 'y': give it without mode 'record'",
        ),
        ({"replicas": 2}, "unknown key 'replicas'"),
    ],
)
def test_what_does_not_go_together_is_refused(config, says):
    assert says in refusal(ServingError, read_options, {"method": "adaspec", **config})


def test_a_worker_that_unpickles_options_imports_nothing_heavy():
    """Its own start would fail over a compiler."""
    options = read_options({"method": "adaspec"})
    options = dataclasses.replace(options, costs=dataclasses.asdict(load_cost(DEFAULT)))
    assert options.is_guarded
    code = (
        "import pickle, sys; pickle.loads(sys.stdin.buffer.read());"
        "heavy = {'numpy', 'numba', 'llvmlite'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(options), check=True)
