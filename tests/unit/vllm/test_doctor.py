import importlib.metadata
import json
import sys
from unittest.mock import Mock

import pytest

from adaspec.cli.main import run
from adaspec.errors import ServingError
from adaspec.vllm import doctor

GIVEN = ["--model", "M", "--draft", "HEAD"]
PYTHON = sys.executable


def looked_at(capsys, **asked):
    doctor.look(asked)
    lines = capsys.readouterr().out.splitlines()
    findings = [doctor.Finding(**json.loads(line.removeprefix(doctor.MARK))) for line in lines]
    return {each.part: each for each in findings}


@pytest.fixture
def parts(monkeypatch):
    """The parts of which the process says something; a test may put others in."""
    there = {"vllm": lambda: (True, "is there", ""), "model": lambda: (True, "fits", "")}
    monkeypatch.setattr(doctor, "parts_of", lambda **_: there)
    return there


def test_whatever_fails_is_said_in_one_line_with_what_to_do_and_hides_nothing(parts, capsys):
    missing = ServingError("policy 'p' is not there: give one that is")
    parts["vllm"] = Mock(side_effect=ImportError("No module\nnamed 'vllm'"))
    parts["adaspec"] = Mock(side_effect=RuntimeError("half of it"))
    parts["policy"] = Mock(side_effect=missing)
    found = looked_at(capsys)
    assert found["vllm"] == doctor.Finding(
        "vllm", False, "ImportError: No module named 'vllm'", doctor.OTHER_VLLM
    )
    assert found["adaspec"].advice == doctor.AGAIN
    assert found["policy"].found == "policy 'p' is not there: give one that is"
    assert found["model"].ok


@pytest.fixture
def process(monkeypatch, tmp_path):
    """Has the process that looks be this program."""

    def be(program):
        path = tmp_path / "python"
        path.write_text(f"#!{PYTHON}\n{program}")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return be


def saying(**finding):
    return f"print({doctor.MARK + json.dumps({'part': 'adaspec', 'ok': True, **finding})!r})\n"


def test_the_exit_code_says_whether_all_will_work_and_a_doubt_is_a_warning(process, capsys):
    for advice, ok, mark in (
        ("", True, "ok  "),
        ("compare", True, "warn"),
        ("mend", False, "not "),
    ):
        process("print('vLLM says hello')\n" + saying(found="whole", advice=advice, ok=ok))
        assert run(["doctor", *GIVEN]) == (0 if ok else 2)
        assert capsys.readouterr().out.startswith(f"{mark} adaspec: whole\n")
        assert run(["doctor", "--json"]) == (0 if ok else 2)
        assert json.loads(capsys.readouterr().out)["findings"][0]["advice"] == advice


def test_what_ends_the_process_is_said_of_the_part_that_it_looked_at(process, capsys):
    process(saying(found="whole") + "import os; os.write(2, b'Illegal\\n'); os.abort()")
    assert run(["doctor"]) == 2
    whole, broken, _ = capsys.readouterr().out.splitlines()
    assert whole == "ok   adaspec: whole"
    assert broken.startswith("not  vllm: the process that looked at it ended with status -6")
    assert broken.endswith("saying: Illegal")


def test_a_policy_that_cannot_be_read_is_named(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_runner", doctor._adaspec)
    monkeypatch.setattr(doctor, "_vllm", doctor._adaspec)
    for policy, says in (("polcy", "polcy"), ("budget:3", "for replays alone")):
        finding = looked_at(capsys, policy=policy)["policy"]
        assert not finding.ok
        assert says in finding.found
    assert looked_at(capsys, policy="fixed:neural:3")["policy"].ok
    assert "general" in looked_at(capsys)["policy"].found


def test_plugins_that_leave_adaspec_out_are_named(monkeypatch):
    point = importlib.metadata.EntryPoint(
        "adaspec", "adaspec.vllm.plugin:register", "vllm.general_plugins"
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [point])
    assert not doctor.plugin_problem()
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    assert "VLLM_PLUGINS=other" in doctor.plugin_problem()
    monkeypatch.delenv("VLLM_PLUGINS")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [])
    assert "pip install" in doctor.plugin_problem()
