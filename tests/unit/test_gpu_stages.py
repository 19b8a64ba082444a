"""eval/gpu/run.py: stages are done once, go on after being killed, and fail alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "eval" / "gpu"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="needs eval/, which a source distribution leaves out"
)

STAGE = """
import json, os, sys, time
sys.path.insert(0, {folder!r})
from pathlib import Path
from results import Cells, write_json
folder, names = Path(sys.argv[1]), sys.argv[2:]
plan = json.loads((folder / "plan.json").read_text())["stages"]
for name in names:
    stage = plan[name]
    (folder / f"{{name}}.began").open("a").write("x")
    cells = Cells(folder / "cells" / f"{{name}}.jsonl", stage["settings"])
    for at in range(3):
        if str(at) not in cells:
            cells.add(str(at), {{"at": at}})
            if stage["settings"]["how"] == "killed once" and len(cells) == 2:
                os._exit(9)
    if stage["settings"]["how"] == "hangs":
        time.sleep(60)
    document = {{"schema": 1, "stage": name, "part": "lossless", "settings": stage["settings"]}}
    write_json(folder / "stages" / f"{{name}}.json", document | {{"status": "done", "why": None}})
"""
RUN = """
import sys
sys.path.insert(0, {folder!r})
import run
from plan import Stage
run.HERE = __import__("pathlib").Path({scripts!r})
run.measure_rounds = lambda *_: False
run.shutil.which = lambda name: name
run.stages = lambda wanted: [
    Stage(name, "lossless", "lossless", "V1", {{"how": how, "seed": {seed}}}, limit_s={limit})
    for name, how in {stages!r}.items()
]
sys.exit(run.main())
"""


@pytest.fixture
def run(tmp_path):
    """Runs stages that need no engine; returns the exit code and what was printed."""
    scripts, out = tmp_path / "scripts" / "gpu", tmp_path / "out"
    scripts.mkdir(parents=True)
    (scripts / "stage.py").write_text(STAGE.format(folder=str(FOLDER)))

    def start(stages, *words, seed=0, limit=30):
        code = RUN.format(
            folder=str(FOLDER), scripts=str(scripts), stages=stages, seed=seed, limit=limit
        )
        command = [sys.executable, "-c", code, "--out", str(out), *words]
        path = os.pathsep.join([str(FOLDER.parents[1]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    start.out = out
    return start


def starts(run, name):
    path = run.out / f"{name}.began"
    return len(path.read_text()) if path.exists() else 0


def status(run, name):
    return json.loads((run.out / "stages" / f"{name}.json").read_text())


def test_a_stage_is_done_again_if_its_settings_change_or_a_line_was_left_unfinished(run):
    for seed, expected in ((0, 1), (0, 1), (1, 2)):
        done = run({"one": "well"}, seed=seed)
        assert done.returncode == 0, done.stderr
        assert starts(run, "one") == expected
    assert status(run, "one")["settings"]["seed"] == 1
    path = run.out / "cells" / "one.jsonl"
    path.write_text(path.read_text()[:-5])
    (run.out / "stages" / "one.json").unlink()
    assert run({"one": "well"}, seed=1).returncode == 0
    lines = path.read_text().splitlines()
    assert [json.loads(line).get("key") for line in lines] == [None, "0", "1", "2"]


def test_a_killed_stage_goes_on_from_its_cells_and_leaves_the_others(run):
    stages = {"first": "well", "dies": "killed once", "last": "well"}
    done = run(stages)
    assert done.returncode == 1
    assert [status(run, name)["status"] for name in stages] == ["done", "failed", "done"]
    assert "exit code 9" in status(run, "dies")["why"]
    assert "exit code 9" in (run.out / "report.html").read_text()
    assert run(stages).returncode == 0
    lines = (run.out / "cells" / "dies.jsonl").read_text().splitlines()
    assert [json.loads(line)["cell"]["at"] for line in lines[1:]] == [0, 1, 2]
    assert [starts(run, name) for name in stages] == [1, 2, 1]
