"""Ranks decide alike, whatever their clocks say, and change the mode in the same step, or hang."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.thorough
@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_two_ranks_say_what_they_say_without_speculation(models, tmp_path, runner):
    script = Path(__file__).with_name("two_ranks.py")
    words = [sys.executable, str(script), runner, str(models), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["same"] == {"outputs": True, "times": False, "costs": True, "decided": True}
    assert said["cost"] == "measured at start"
    assert said["decided"] > 50 or runner == "V1"
    assert said["verified"]["serve"] > 50
