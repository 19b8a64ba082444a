import pickle
import subprocess
import sys

import pytest

from adaspec.errors import ServingError
from adaspec.vllm.options import read_options


def test_what_is_not_written_is_left_open():
    options = read_options({"method": "adaspec"})
    assert options.model is None
    assert options.policy is None
    assert options.num_speculative_tokens is None
    assert options.mode == "serve"


def test_keys_of_vllm_that_say_how_a_drafter_is_loaded_are_handed_on():
    options = read_options({"method": "adaspec", "draft-tensor-parallel-size": 2})
    assert options.passed == {"draft_tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("trace_dri", "x", "did you mean 'trace_dir'"),
        ("mode", "sreve", "did you mean 'serve'"),
        ("num_speculative_tokens", 0, "from 1"),
        ("num_speculative_tokens", True, "from 1"),
        ("num_speculative_tokens", "8", "from 1"),
        ("record_fraction", 1.5, "0 to 1"),
        ("max_trace_bytes", 0, "max_trace_bytes=0"),
        ("policy", 7, "policy=7"),
        ("parallel_drafting", True, "does not go with"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(key, value, says):
    with pytest.raises(ServingError) as caught:
        read_options({"method": "adaspec", key: value})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_worker_that_unpickles_options_imports_nothing_heavy():
    options = pickle.dumps(read_options({"method": "adaspec"}))
    code = (
        f"import pickle, sys; pickle.loads({options!r});"
        "heavy = {'numpy', 'numba', 'llvmlite'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_recording_needs_a_place():
    with pytest.raises(ServingError, match="trace_dir"):
        read_options({"method": "adaspec", "mode": "record"})
    with pytest.raises(ServingError, match="trace_dir"):
        read_options({"method": "adaspec", "record_fraction": 0.1})


def test_how_many_engines_serve_the_same_is_no_key():
    with pytest.raises(ServingError, match="unknown key 'replicas'"):
        read_options({"method": "adaspec", "replicas": 2})
