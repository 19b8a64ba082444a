import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
# The replay's random recordings serve here too.
sys.path.append(str(Path(__file__).parents[1] / "replay"))


@pytest.fixture
def folder(tmp_path):
    import policy_fakes

    return policy_fakes.written(tmp_path / "mine")
