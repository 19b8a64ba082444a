"""The heads' card: what it needs is there, or is named in one line."""

import json
import subprocess
import sys

import pytest
from tiny_pair import RECIPE

pytestmark = pytest.mark.skipif(
    not RECIPE.is_dir(), reason="training/ is not here: a source distribution leaves it out"
)

ACCEPTED = {"agree": [0.6, 0.5, 0.4, 0.3], "emitted": 1.9, "positions": 1200}
ROW = {"report_at_tokens": 1000, "corpus_tokens": 900, "all": ACCEPTED, "math": ACCEPTED}


@pytest.fixture
def made(tmp_path):
    (tmp_path / "states").mkdir()
    sequences = [{"kind": "math", "held_out": False, "length": 1234}]
    shard = tmp_path / "states" / "answers0-00000.json"
    shard.write_text(json.dumps({"sequences": sequences}))
    (tmp_path / "eagle3-training").mkdir()
    (tmp_path / "eagle3-training" / "log.jsonl").write_text(json.dumps(ROW) + "\n")
    return tmp_path


def written(folder):
    command = [sys.executable, str(RECIPE / "write_card.py"), "--states", str(folder / "states")]
    command += ["--training", str(folder / "eagle3-training"), "-o", str(folder / "CARD.md")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_card_tells_what_was_read_and_what_was_accepted(made):
    assert written(made).returncode == 0
    card = (made / "CARD.md").read_text()
    assert "| math | 1, 1,234 | 0, 0 | 0, 0 |" in card
    assert "| math | 1,200 | 0.600 | 0.500 | 0.400 | 0.300 | 1.90 |" in card


def test_what_is_missing_is_said_in_one_line(made):
    log = made / "eagle3-training" / "log.jsonl"
    for broken, said in (
        (lambda: log.write_text("{"), "cannot be"),
        (lambda: log.write_text(""), "train on"),
        (log.unlink, "no such file"),
        ((made / "states" / "answers0-00000.json").unlink, "states: holds"),
    ):
        broken()
        done = written(made)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("write_card: ") and said in line
    assert not (made / "CARD.md").exists()
