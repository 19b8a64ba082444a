"""What a drafter is can be said to every command that takes one."""

import pytest

from adaspec.cli.main import run

COMMANDS = {
    "profile": ["profile", "-o", "c.json"],
    "record": ["record", "--prompts", "p.jsonl", "-o", "out"],
    "doctor": ["doctor"],
}


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"text": "hello"}\n')

    def mistake(command, *more):
        assert run([*COMMANDS[command], "--model", "M", *more]) == 2
        return capsys.readouterr().err

    return mistake


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_drafter_is_is_not_said_without_one(said, command):
    assert "--draft-method eagle says what --draft is" in said(command, "--draft-method", "eagle")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_kind_of_drafter_is_refused_with_those_known(said, command):
    line = said(command, "--draft", "H", "--draft-method", "egale")
    assert "'egale'" in line
    assert "draft_model" in line


@pytest.mark.parametrize("method", [None, "eagle"])
def test_the_recording_and_the_profile_are_told(monkeypatch, tmp_path, method):
    from adaspec.bench.profile import profile as profiling
    from adaspec.vllm import recording

    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"text": "hello"}\n')
    told = []

    def note(task, *_):
        told.append(task.draft_method)
        raise SystemExit

    monkeypatch.setattr(recording, "record", note)
    monkeypatch.setattr(profiling, "profile_machine", note)
    more = ["--model", "M", "--draft", "H"] + (["--draft-method", method] if method else [])
    for command in ("profile", "record"):
        with pytest.raises(SystemExit):
            run([*COMMANDS[command], *more])
    assert told == [method, method]
