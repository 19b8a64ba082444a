"""Engines in this process, and models with random weights in the shapes of real ones."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from forced import replace

CHECKOUT = Path(__file__).resolve().parents[2]
ENGINE_TESTS = CHECKOUT / "tests" / "engine"

VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # An engine in this process can be forced, given plans and timed from outside.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    # A machine may lack FlashInfer: vLLM's own sampler is the same for all methods.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128009,
    "torch_dtype": "bfloat16",
}
"""Llama-3.1-8B-Instruct, without its scaling of long positions, which takes no time."""
HEAD = {
    **LLAMA,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 32000,
    "target_hidden_size": 4096,
    "max_position_embeddings": 8192,
}
"""Its EAGLE-3 head."""
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 49152,
    "torch_dtype": "float32",
}
"""What a dry run has in their place; the vocabulary is that of the recordings."""
TINY_TARGET = {**TINY, "num_hidden_layers": 4}
TINY_HEAD = {
    **TINY,
    "draft_vocab_size": 1024,
    "target_hidden_size": 64,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
}


_V2 = "vllm.v1.worker.gpu"
DISPATCHERS = {
    f"{_V2}.model_runner": "target",
    f"{_V2}.spec_decode.target_dependent_ar.speculator": "head",
}
"""The modules of V2 that choose a CUDA graph for each step."""


class Skip(Exception):
    """A stage cannot be done on this machine; the argument is why."""


def write_shapes(folder: Path, dry_run: bool) -> tuple[str, str]:
    """The folders of a target and a head that have configs alone: vLLM makes up the weights."""
    configs = {"target": LLAMA, "head": HEAD}
    if dry_run:
        configs = {"target": LLAMA | TINY_TARGET, "head": HEAD | TINY_HEAD}
    for name, config in configs.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return str(folder / "target"), str(folder / "head")


def tiny_models(cache: Path) -> Path:
    """The folder of the models of the engine tests, whose heads are right often; made once."""
    sys.path.append(str(ENGINE_TESTS))
    from live_engine import models_in

    cache.mkdir(parents=True, exist_ok=True)
    return Path(models_in(cache))


def prepare_process() -> None:
    """Set this process up for engines on V2; to be done before vLLM is imported."""
    os.environ.update({name: os.environ.get(name, value) for name, value in VARIABLES.items()})
    if not has_gpu():
        sys.path.append(str(ENGINE_TESTS / "v2"))
        import interpreter  # noqa: F401
    from adaspec.vllm.commands import prepare_vllm

    prepare_vllm("this stage")


def has_gpu() -> bool:
    """Whether models run on a GPU here."""
    import torch

    return torch.cuda.is_available()


@contextmanager
def opened(target: str, config: dict[str, Any] | None, arguments: dict[str, Any]) -> Iterator[Any]:
    """An `LLM` in this process that runs on V2; raises `Skip` if it cannot."""
    from adaspec.vllm.commands import open_engine
    from adaspec.vllm.patching import shield_llvmlite

    shield_llvmlite()  # engines without adaspec start in this process, too
    if not has_gpu() and (config or {}).get("method") != "ngram":
        # On an accelerator this is vLLM's own choice, but for `ngram`, which it has not there.
        arguments = {"async_scheduling": True, **arguments}
    fixed = {"distributed_executor_backend": "uni", "disable_log_stats": True, "seed": 0}
    llm = open_engine(target, config, fixed | arguments)
    try:
        if not llm.llm_engine.vllm_config.use_v2_model_runner:
            raise Skip("vLLM serves this on model runner V1")
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def core(llm: Any) -> Any:
    """The engine's core."""
    return llm.llm_engine.engine_core.engine_core


def model_runner(llm: Any) -> Any:
    """The engine's model runner."""
    return core(llm).model_executor.driver_worker.worker.model_runner


@contextmanager
def graphs_counted() -> Iterator[dict[str, dict[str, int]]]:
    """Counts V2's steps by the kind of CUDA graph that they run in.

    Drafts of several lengths leave the full graphs where the attention backend cannot vary them.
    """
    counts: dict[str, dict[str, int]] = {}
    with ExitStack() as replaced:
        for name, part in DISPATCHERS.items():
            modes = counts.setdefault(part, {})

            def dispatch(original: Any, *args: Any, modes: Any = modes, **named: Any) -> Any:
                found = original(*args, **named)
                mode = str(found[0].cg_mode.name)
                modes[mode] = modes.get(mode, 0) + 1
                return found

            replace(replaced, import_module(name), "dispatch_cg_and_sync_dp", dispatch)
        yield counts
