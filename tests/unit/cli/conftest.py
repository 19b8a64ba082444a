import pytest

from adaspec.cli.main import run


@pytest.fixture
def mistake(capsys, tmp_path):
    """The one line that a command says of a mistake, having left nothing behind."""

    def said(*words):
        capsys.readouterr()
        before = sorted(tmp_path.rglob("*"))
        assert run([*map(str, words)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("adaspec: error: ")
        assert err.count("\n") == 1
        assert sorted(tmp_path.rglob("*")) == before
        return err.removeprefix("adaspec: error: ").rstrip("\n")

    return said
