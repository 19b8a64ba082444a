"""An engine in this very process, with what is inside of it at hand; and the models it serves."""

import gc
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="WARNING",
)


ENGINE = {
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 384,
    "max_num_seqs": 8,
    "gpu_memory_utilization": 0.2,
    "num_gpu_blocks_override": 512,
    "distributed_executor_backend": "uni",
    "disable_log_stats": True,
    "seed": 0,
}
"""The arguments of every engine that names no others."""


def models_in(cache):
    """The folder of the tiny models, in this cache; made once per version of what makes them."""
    source = HERE / "tiny_models.py"
    version = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    folder = Path(cache) / f"engine-models-{version}"
    if not folder.exists():
        making = folder.with_name(f"{folder.name}-{os.getpid()}")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, str(source), str(making)], check=True, env=environment)
        try:
            making.rename(folder)
        except OSError:  # another process was there first
            if not folder.exists():
                raise
            shutil.rmtree(making)
    return folder


def sampling(tokens, temperature=0, ignore_eos=True, **more):
    """Sampling parameters for so many tokens: greedy, unless a temperature is given."""
    from vllm import SamplingParams

    return SamplingParams(temperature=temperature, max_tokens=tokens, ignore_eos=ignore_eos, **more)


KINDS = ("reach the longest length", "structured", "may not stop yet")


def requests_of(kind, prompts):
    """Prompts and sampling parameters of a kind of requests that drafts must not disturb."""
    from tiny_models import document, ids_of
    from vllm.sampling_params import StructuredOutputsParams

    if kind == "reach the longest length":
        asked = [ids_of(document(50 + at, 30))[: 354 + 3 * at] for at in range(6)]
        return asked, [sampling(100)] * 6
    if kind == "structured":
        rules = StructuredOutputsParams(regex=r"(row\.update\((row|table), [0-9]\);\n){3}")
        return prompts, [sampling(60, structured_outputs=rules)] * len(prompts)
    newline, some = ids_of("\n")[0], prompts[: len(prompts) // 2]
    return some * 3, [
        sampling(40, ignore_eos=False, stop_token_ids=[newline], min_tokens=least)
        for least in (0, 7, 21)
        for _ in some
    ]


class Engine:
    """An `LLM` in this process, with its runner, scheduler and session at hand."""

    def __init__(self, models, speculative_config, target="target", **arguments):
        from vllm import LLM

        from adaspec.vllm.patching import shield_llvmlite
        from adaspec.vllm.plugin import register

        register()
        if speculative_config and speculative_config.get("method") == "adaspec":
            # On such tiny models nothing is faster than no speculation: a guard would hold it off.
            speculative_config = {"guard": False, **speculative_config}
        shield_llvmlite()  # engines without adaspec start in this process too
        self.llm = LLM(
            str(models / target),
            speculative_config=speculative_config,
            **{**ENGINE, **arguments},
        )
        core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.runner = core.model_executor.driver_worker.worker.model_runner
        self.first = vars(self.runner).get("adaspec_session")
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

    def put(self, policy, **changes):
        """Serve by another policy from here on, in the first session but for these changes."""
        from wandering import serve_by

        from adaspec.vllm.choice import named_policy

        if isinstance(policy, str):
            policy = named_policy(policy)
        self.first = self.first or self.runner.adaspec_session
        self.runner.adaspec_session = self.first
        return serve_by(self.runner, policy, **changes)

    def generate(self, prompts, params, salts=None, **named):
        """What vLLM returns for every prompt, which may have a salt."""
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        for one, salt in zip(asked, salts or (), strict=salts is not None):
            if salt is not None:
                one["cache_salt"] = salt
        return self.llm.generate(asked, params, use_tqdm=False, **named)

    def outputs(self, *asked, **named):
        found = self.generate(*asked, **named)
        return [[list(each.token_ids) for each in one.outputs] for one in found]

    def greedy(self, prompts, tokens=48, **named):
        return [one[0] for one in self.outputs(prompts, sampling(tokens), **named)]

    def abort(self, prompts, tokens, steps):
        """Begin requests for these prompts, and abort them after so many steps."""
        core, names = self.llm.llm_engine, [f"cut-{at}" for at in range(len(prompts))]
        for name, prompt in zip(names, prompts, strict=True):
            core.add_request(name, {"prompt_token_ids": prompt}, sampling(tokens))
        for _ in range(steps):
            core.step()
        core.abort_request(names)

    def close(self):
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm, self.scheduler, self.runner, self.first
        gc.collect()
