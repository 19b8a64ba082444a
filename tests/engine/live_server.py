"""vLLM's own multi-process server, which finds adaspec by its entry point alone."""

import json
import os
import sys
import time
import urllib.request
from contextlib import chdir
from unittest.mock import patch

from checkout import CHECKOUT, need, path_with

from adaspec.vllm.patching import FORCED_VARIABLE, V2_VARIABLE

need("eval")
sys.path.append(str(CHECKOUT / "eval"))

import vllm_server  # noqa: E402

PATIENCE_S = 600
"""A bound for what hangs."""


def wait_until(happens):
    deadline = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < deadline, f"it did not happen in {PATIENCE_S} s"
        time.sleep(0.2)


def own_environment():
    """Environment variables of a process that finds adaspec by its entry point."""
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    environment["VLLM_LOGGING_LEVEL"] = "INFO"
    # An engine of this process on V1 leaves word of it, which is not for others.
    if environment.pop(FORCED_VARIABLE, None) and environment.get(V2_VARIABLE) == "0":
        del environment[V2_VARIABLE]
    return {**environment, "PYTHONPATH": path_with()}


class Server(vllm_server.Server):
    """A server of the tiny target; as a context it has started, and is ended."""

    def __init__(self, models, folder, speculative_config, **more):
        engine = {"dtype": "float32", "max_model_len": 384, "max_num_seqs": 8}
        engine |= {"enforce_eager": True, "gpu_memory_utilization": 0.4, **more}
        if speculative_config:  # as in live_engine.Engine
            speculative_config = {"guard": False, **speculative_config}
        with patch.dict(os.environ, own_environment(), clear=True), chdir(folder):
            target, log = str(models / "target"), folder / "server.log"
            super().__init__(target, engine, speculative_config, log)

    def __enter__(self):
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error):
        self.stop()

    def answer(self, prompts, tokens, **more):
        """The whole answer; `more` goes into the request's body."""
        body = {
            "model": vllm_server.SERVED_NAME,
            "prompt": prompts,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            **more,
        }
        request = urllib.request.Request(
            f"{self.address}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        return json.load(urllib.request.urlopen(request, timeout=PATIENCE_S))

    def metrics(self):
        from prometheus_client.parser import text_string_to_metric_families

        text = urllib.request.urlopen(f"{self.address}/metrics", timeout=60).read().decode()
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
