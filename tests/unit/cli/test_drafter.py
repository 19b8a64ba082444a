"""What a drafter is can be said to every command that takes one."""

import pytest

from adaspec.cli.main import run

COMMANDS = {
    "profile": ["profile", "-o", "c.json"],
    "record": ["record", "--prompts", "p.jsonl", "-o", "out"],
    "doctor": ["doctor"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_kind_of_drafter_is_refused_without_one_or_if_it_is_none(
    mistake, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"text": "hello"}\n')
    words = [*COMMANDS[command], "--model", "M"]
    line = mistake(*words, "--draft-method", "eagle")
    assert "--draft-method eagle says what --draft is" in line
    line = mistake(*words, "--draft", "H", "--draft-method", "egale")
    assert "'egale'" in line
    assert "draft_model" in line


@pytest.mark.parametrize("method", [None, "eagle"])
def test_the_recording_and_the_profile_are_told(monkeypatch, tmp_path, method):
    from adaspec.bench import profile as profiling
    from adaspec.vllm import prompt_run

    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"text": "hello"}\n')
    told = []

    def note(task, *_):
        told.append(task.draft_method)
        raise SystemExit

    monkeypatch.setattr(prompt_run, "record", note)
    monkeypatch.setattr(profiling, "profile_machine", note)
    more = ["--model", "M", "--draft", "H"] + (["--draft-method", method] if method else [])
    for command in ("profile", "record"):
        with pytest.raises(SystemExit):
            run([*COMMANDS[command], *more])
    assert told == [method, method]
