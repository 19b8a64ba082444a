import pytest


@pytest.fixture(scope="module", autouse=True)
def kernels_run_here(request):
    """Where a module of tests runs kernels, they run on the device at hand."""
    if not hasattr(request.module, "DEVICE"):
        yield
        return
    from interpreter import host_tensors

    with host_tensors():
        yield
