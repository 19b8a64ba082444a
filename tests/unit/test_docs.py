"""The README's command lines are ones that the command line takes."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from adaspec.cli.main import COMMANDS, adaspec

CHECKOUT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def shell_lines(text):
    """The lines of every shell block, comments and continuations taken care of."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def command_lines():
    """Every `adaspec ...` in the README: from shell blocks, and inline where it has arguments."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    for words in shell_lines(text):
        if words[0] == "adaspec":
            yield words[1:]
    for inline in re.findall(r"`adaspec ([^`\n]+)`", text):
        yield shlex.split(inline)


def resolved(words):
    """The click command of a command line, and what is left of its words."""
    if words[0] in COMMANDS and find_spec(COMMANDS[words[0]][0]) is None:
        pytest.skip(f"'adaspec {words[0]}' is documented; its module is not there yet")
    # click keeps the help option of the first context it sees, so this one has the real settings.
    command, context = (
        adaspec,
        click.Context(adaspec, info_name="adaspec", **adaspec.context_settings),
    )
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, command, words = command.resolve_command(context, words)
        context = click.Context(command, info_name=name, parent=context)
    return command, context, words


def make_lines():
    """Every `adaspec ...` of the Makefile, its variables filled in."""
    text = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    variables = dict(re.findall(r"^([A-Z_]+) :?\??= (.*)$", text, flags=re.MULTILINE))
    asked = r"^(?:\t@?|[A-Z_]+ = )\$\(PY\) -m adaspec (.*)$"
    for line in re.findall(asked, text, flags=re.MULTILINE):
        yield shlex.split(re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], line))


def redirected(words):
    """The words before a shell's redirection or pipe."""
    for at, word in enumerate(words):
        if word in {">", "2>", "|", "&&"}:
            return words[:at]
    return words


@pytest.mark.parametrize("words", list(command_lines()), ids=" ".join)
def test_a_command_line_of_the_readme_parses(words, monkeypatch):
    # What the README's paths name need not exist here.
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: value)
    command, context, rest = resolved(redirected(words))
    command.make_context(context.info_name, list(rest), parent=context.parent)


@pytest.mark.parametrize("words", list(make_lines()), ids=" ".join)
def test_a_command_line_of_the_makefile_parses_and_its_files_are_there(words):
    command, context, rest = resolved(words)
    made = command.make_context(context.info_name, list(rest), parent=context.parent).params
    named = [path for path in (*made.get("traces", ()), made.get("cost")) if path is not None]
    if named and not (CHECKOUT / "eval" / "traces").is_dir():
        pytest.skip("eval/traces is not here: a source distribution leaves it out")
    for path in named:
        assert (CHECKOUT / path).exists(), path


def test_the_demo_trains_and_judges_before_it_serves():
    assert [words[0] for words in make_lines()][:2] == ["train", "eval"]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_is_in_the_readme(name):
    assert any(words[0] == name for words in command_lines())


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_commands_help_has_an_example(name):
    command, context, _ = resolved([name])
    assert "Example" in command.get_help(context)


def test_every_make_target_that_is_documented_exists():
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    for document in DOCUMENTS:
        text = (CHECKOUT / document).read_text(encoding="utf-8")
        for target in re.findall(r"`make ([a-z-]+)`", text):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_every_file_that_a_document_links_to_exists():
    for document in DOCUMENTS:
        text = (CHECKOUT / document).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
            assert (CHECKOUT / target).exists(), f"{document} links to {target}"


def pages():
    """The pages of docs/ and what they say."""
    found = sorted((CHECKOUT / "docs").glob("*.md"))
    if not found:
        pytest.skip("docs/ is not here: a source distribution leaves it out")
    return [(path, path.read_text(encoding="utf-8")) for path in found]


def test_every_name_of_code_that_a_page_gives_exists():
    for page, text in pages():
        for file, name in re.findall(r"`((?:adaspec|tests)/[\w/]+\.py)(?::(\w+))?`", text):
            assert (CHECKOUT / file).exists(), f"{page.name} names {file}"
            source = (CHECKOUT / file).read_text(encoding="utf-8")
            assert not name or re.search(rf"^(def|class) {name}\b", source, re.MULTILINE), (
                f"{page.name} names {file}:{name}"
            )


def test_every_file_that_a_page_links_to_exists():
    for page, text in pages():
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
