import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
# Random models, recordings and answers, and what a session is made of, serve here too.
for neighbour in ("policy", "replay", "draft", "vllm"):
    sys.path.append(str(Path(__file__).parents[1] / neighbour))


@pytest.fixture(scope="module", autouse=True)
def kernels_run_here(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where a module of tests runs kernels, they run on the device at hand."""
    if not hasattr(request.module, "DEVICE"):
        yield
        return
    from interpreter import host_tensors

    with host_tensors():
        yield
