"""What the first minute on a GPU has to show, since nothing of it can be tried without one.

    python eval/gpu/checks.py checks.json

Each check says what it found, or what is wrong; where one fails, the engines would not start.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import time
from collections.abc import Callable
from pathlib import Path

from results import SCHEMA, write_json
from rounds import LLAMA, LLAMA_POLICY

PYTHON, VLLM = (3, 12), "0.32.0"
FREE_GIB = 72.0
"""Three engines take so much."""


def python() -> str:
    """The Python for which the packages were made."""
    assert sys.version_info[:2] == PYTHON, "the carried packages are for Python 3.12"
    return sys.version.split()[0]


def gpu() -> str:
    """Torch sees a GPU with room for three engines."""
    import torch

    assert torch.cuda.is_available(), f"torch {torch.__version__} sees no GPU"
    free = torch.cuda.mem_get_info()[0] / 2**30
    name = f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {free:.1f} GiB are free"
    assert torch.cuda.get_device_capability() == (9, 0), f"{name}: FlashAttention 3 needs Hopper"
    assert free >= FREE_GIB, f"{name}: three engines take {FREE_GIB:.0f}"
    return name


def library() -> str:
    """vLLM's large library goes with this torch: one of its kernels is right."""
    import torch
    import vllm._C_stable_libtorch  # noqa: F401

    version = importlib.metadata.version("vllm")
    assert version == VLLM, f"vLLM {version} is installed beside the carried one"
    given = torch.randn(64, 256, device="cuda")
    found = given.new_empty(64, 128)
    torch.ops._C.silu_and_mul(found, given)
    wanted = torch.nn.functional.silu(given[:, :128]) * given[:, 128:]
    assert torch.allclose(found, wanted, atol=1e-5), "silu_and_mul is wrong"
    return f"vLLM {version}"


def attention() -> str:
    """vLLM takes FlashAttention 3, and does without the absent 2."""
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
    from vllm.vllm_flash_attn import flash_attn_interface as interface

    assert interface.FA3_AVAILABLE, interface.FA3_UNAVAILABLE_REASON
    version = get_flash_attn_version()
    assert version == 3, f"vLLM would take FlashAttention {version}"
    return "FlashAttention 3"


def triton() -> str:
    """Triton compiles for this GPU."""
    import torch

    compiled = torch.compile(lambda given: (given * 2).relu())
    given = torch.randn(1024, device="cuda")
    assert torch.allclose(compiled(given), (given * 2).relu()), "a compiled function is wrong"
    return f"Triton {importlib.metadata.version('triton')}"


def engine() -> str:
    """All that an engine imports is there."""
    import vllm.entrypoints.llm
    import vllm.v1.worker.gpu.model_runner
    import vllm.v1.worker.gpu_worker  # noqa: F401

    from adaspec.vllm.compatibility import FUNCTIONS_V2, check_functions

    check_functions(FUNCTIONS_V2)
    return "the V2 model runner, as adaspec knows it"


def requests() -> str:
    """The policy loads, and there are recordings that it never saw."""
    from workload import recorded

    settings = {"traces": str(LLAMA), "policy": LLAMA_POLICY, "requests": 1000}
    found = recorded(settings | {"prompt_tokens": 512, "output_tokens": 160})
    assert len(found) > 100, f"{len(found)} requests are too few"
    return f"{len(found)} requests"


CHECKS: tuple[Callable[[], str], ...] = (
    python, gpu, library, attention, triton, engine, requests,
)  # fmt: skip


def main() -> int:
    """Run the command line; 1 where a check failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the JSON file to write")
    out = parser.parse_args().out
    found, well = {}, True
    for check in CHECKS:
        began_s = time.perf_counter()
        try:
            said, is_well = check(), True
        except Exception as error:
            said, is_well = f"{type(error).__name__}: {error}", False
        took_s, well = time.perf_counter() - began_s, well and is_well
        found[check.__name__] = {"well": is_well, "said": said, "seconds": took_s}
        print(
            f"{check.__name__}: {'' if is_well else 'FAILED: '}{said} ({took_s:.1f} s)", flush=True
        )
        write_json(out, {"schema": SCHEMA, "checks": found})
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
