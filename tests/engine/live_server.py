"""vLLM's own multi-process server, which finds adaspec by its entry point alone."""

import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from checkout import path_with

from adaspec.vllm.patching import FORCED_VARIABLE, V2_VARIABLE

PATIENCE_S = 600
"""A bound for what hangs; starved machines take minutes to start a server."""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment_with_entry_point(folder, exist_ok=False):
    """Environment variables under which adaspec's entry point is found, installed or not."""
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    environment["VLLM_LOGGING_LEVEL"] = "INFO"
    # An engine of this process on V1 leaves word of it, which is not for others.
    if environment.pop(FORCED_VARIABLE, None) and environment.get(V2_VARIABLE) == "0":
        del environment[V2_VARIABLE]
    points = importlib.metadata.entry_points(group="vllm.general_plugins")
    is_installed = any(point.name == "adaspec" for point in points)
    if not is_installed:
        info = folder / "adaspec-0.dist-info"
        info.mkdir(exist_ok=exist_ok)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: adaspec\nVersion: 0\n")
        (info / "entry_points.txt").write_text(
            "[vllm.general_plugins]\nadaspec = adaspec.vllm.plugin:register\n"
        )
    return {**environment, "PYTHONPATH": path_with(*([] if is_installed else [folder]))}


class Server:
    """A server of the tiny target; as a context it has started, and is ended."""

    def __init__(self, models, folder, speculative_config, *more, environment=None):
        self.port = free_port()
        self.log = folder / "server.log"
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
        command += [str(models / "target"), "--served-model-name", "target", *more]
        command += ["--port", str(self.port), "--host", "127.0.0.1", "--dtype", "float32"]
        command += ["--max-model-len", "384", "--max-num-seqs", "8", "--enforce-eager"]
        command += ["--gpu-memory-utilization", "0.4"]
        if speculative_config:
            if speculative_config["method"] == "adaspec":  # as in live_engine.Engine
                speculative_config = {"guard": False, **speculative_config}
            command += ["--speculative-config", json.dumps(speculative_config)]
        self.process = subprocess.Popen(
            command,
            env=environment or environment_with_entry_point(folder),
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            cwd=folder,
        )

    def __enter__(self):
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error):
        self.stop()

    def wait(self):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2)
                return
            except OSError:
                time.sleep(1)
        pytest.fail(f"the server did not start:\n{self.log.read_text()[-3000:]}")

    def complete(self, prompts, tokens):
        """The text that every prompt is answered with."""
        choices = self.answer(prompts, tokens)["choices"]
        return [each["text"] for each in sorted(choices, key=lambda each: each["index"])]

    def answer(self, prompts, tokens, headers=(), **more):
        """The whole answer; `more` goes into the request's body."""
        body = {
            "model": "target",
            "prompt": prompts,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            **more,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **dict(headers)},
        )
        return json.load(urllib.request.urlopen(request, timeout=PATIENCE_S))

    def metrics(self):
        """Every sample that the server shows, by name and labels."""
        from prometheus_client.parser import text_string_to_metric_families

        address = f"http://127.0.0.1:{self.port}/metrics"
        text = urllib.request.urlopen(address, timeout=60).read().decode()
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
