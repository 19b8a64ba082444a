"""On V2, tensor-parallel ranks decide alike: otherwise they would hang, or say something else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.thorough
def test_two_ranks_say_what_they_say_without_speculation(models, tmp_path):
    script = Path(__file__).with_name("two_ranks.py")
    words = [sys.executable, str(script), str(models), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["same"]
    scheduled, accepted = said["scheduled_and_accepted"]
    assert scheduled > accepted > 50
