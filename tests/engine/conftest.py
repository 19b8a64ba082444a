"""One process, one engine at a time: what the engine tests share."""

import gc
import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="WARNING",
)


def pytest_ignore_collect(collection_path):
    """Where vLLM is absent, only the file that says so is collected."""
    return not _has_vllm() and collection_path.name not in ("engine", "test_presence.py")


def _has_vllm():
    # A folder of that name on the path, such as tests/unit/vllm, is found too, but has no origin.
    found = importlib.util.find_spec("vllm")
    return found is not None and found.origin is not None


@pytest.fixture(scope="session")
def models(request):
    """The folder of the tiny models; made once per version of the file that makes them."""
    source = HERE / "tiny_models.py"
    version = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    folder = Path(request.config.cache.mkdir(f"engine-models-{version}"))
    if not (folder / "done").exists():
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, str(source), str(folder)], check=True, env=environment)
        (folder / "done").touch()
    return folder


class Engine:
    """An `LLM` in this process, with its runner, scheduler and session at hand."""

    def __init__(self, models, speculative_config, **arguments):
        from vllm import LLM

        from adaspec.vllm.compatibility import shield_llvmlite
        from adaspec.vllm.plugin import register

        register()
        shield_llvmlite()  # engines without adaspec start in this process too
        defaults = {
            "enforce_eager": True,
            "dtype": "float32",
            "max_model_len": 384,
            "max_num_seqs": 8,
            "gpu_memory_utilization": 0.4,
            "distributed_executor_backend": "uni",
            "disable_log_stats": True,
            "seed": 0,
        }
        self.llm = LLM(
            str(models / "target"),
            speculative_config=speculative_config,
            **{**defaults, **arguments},
        )
        core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.runner = core.model_executor.driver_worker.worker.model_runner
        self.preempted = 0
        self.judged = {}
        self._count()

    def _count(self):
        preempt, engine = self.scheduler._preempt_request, self

        def preempt_and_count(*args, **kwargs):
            engine.preempted += 1
            return preempt(*args, **kwargs)

        def note(_, num_draft_tokens, num_accepted_tokens, request_id, **more):
            judged = engine.judged.setdefault(request_id.split("-")[0], [])
            judged.append((num_draft_tokens, num_accepted_tokens))

        self.scheduler._preempt_request = preempt_and_count
        self.scheduler.make_spec_decoding_stats = note

    @property
    def session(self):
        return self.runner.adaspec_session

    def put(self, policy, watch=False, **changes):
        """Serve by another policy from here on, with a session of its own."""
        from adaspec.vllm.attachment import serve_by
        from adaspec.vllm.choice import named_policy

        if isinstance(policy, str):
            policy = named_policy(policy)
        return serve_by(self.runner, policy, watch, **changes)

    def outputs(self, prompts, params):
        """Output tokens of every prompt; lists of lists where n > 1."""
        found = self.llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts], params, use_tqdm=False
        )
        return [[list(each.token_ids) for each in one.outputs] for one in found]

    def greedy(self, prompts, tokens=48, **more):
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, **more)
        return [one[0] for one in self.outputs(prompts, params)]

    def close(self):
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm, self.scheduler, self.runner
        gc.collect()


@pytest.fixture(scope="session")
def engines(models):
    """Makes engines, keeps the last one, and closes it when another is asked for."""
    open_engines = {}

    def make(speculative_config=None, **arguments):
        config = dict(speculative_config) if speculative_config else None
        for name in ("eagle", "eagle3", "draft"):
            if config and config.get("model") == name:
                config["model"] = str(models / name)
        key = repr((config, sorted(arguments.items())))
        if key not in open_engines:
            while open_engines:
                open_engines.popitem()[1].close()
            open_engines[key] = Engine(models, config, **arguments)
        return open_engines[key]

    yield make
    while open_engines:
        open_engines.popitem()[1].close()


@pytest.fixture(scope="session")
def prompts():
    """Twelve prompts of 50 to 130 tokens, in which lines repeat."""
    from tiny_models import document, ids_of

    return [ids_of(document(900 + at, 3 + at % 4)) for at in range(12)]


@pytest.fixture(scope="session")
def truth(engines, prompts):
    """What the target says without speculation, by what was asked; computed once each."""
    known = {}

    def outputs(tokens=48, asked=None, **more):
        asked = prompts if asked is None else asked
        key = repr((tokens, asked, sorted(more.items())))
        if key not in known:
            known[key] = engines().greedy(asked, tokens, **more)
        return known[key]

    return outputs
