import importlib.util

import pytest


def test_engine_tests_have_a_vllm_to_run_on():
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed: the engine tests need it")
