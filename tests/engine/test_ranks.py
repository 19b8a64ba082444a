"""Ranks decide alike, whatever their clocks say, and change the mode in the same step, or hang."""

import json
from pathlib import Path

import pytest
from checkout import run_python


@pytest.mark.thorough
@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_two_ranks_say_what_they_say_without_speculation(models, tmp_path, runner):
    script = Path(__file__).with_name("two_ranks.py")
    done = run_python(script, runner, models, tmp_path, timeout=900)
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["same"] == {"outputs": True, "times": False, "costs": True, "decided": True}
    assert said["cost"] == "measured at start"
    assert said["decided"] > 50 or runner == "V1"
    assert said["verified"]["serve"] > 50
