"""A file names the mode while the engine serves; whatever is wrong with it changes nothing."""

import pytest

from adaspec.vllm import mode_file
from adaspec.vllm.mode_file import WORDS, ModeFile, Told
from adaspec.vllm.options import MODES


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(mode_file, "PERIOD_S", 0.0)
    return tmp_path / "mode"


def test_what_the_file_says_holds_from_the_next_look_on(path, monkeypatch):
    assert set(WORDS) < set(MODES)
    path.write_text("shadow\n")
    file = ModeFile(str(path), "serve")
    assert file.read() == Told("shadow", "")
    for word in ("off", " serve ", "shadow"):
        path.write_text(word)
        assert file.read() == Told(word.strip(), "")
        assert file.read() == Told(word.strip(), "")
    monkeypatch.setattr(mode_file, "PERIOD_S", 3600.0)
    file.read()
    path.write_text("off")
    assert file.read().mode == "shadow"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        *((word, "write serve, shadow, off") for word in ("", "sha", "SERVE", "record", "\0")),
        *((word, "write serve, shadow, off") for word in ("serve\noff", "x" * 5000)),
        (None, "No such file"),
    ],
)
def test_what_says_no_mode_keeps_the_mode_and_is_told_once(path, caplog, content, says):
    path.write_text("shadow")
    file = ModeFile(str(path), "serve")
    file.read()
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    told = file.read()
    assert told.mode == "shadow"
    assert told.problem.isprintable()
    assert says in told.problem
    assert file.read() == Told("shadow", "")
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1
    path.write_text("off")
    assert file.read() == Told("off", "")
