import re
import shlex
from itertools import takewhile

import click
import pytest
from checkout import CHECKOUT, need

from adaspec.cli.main import COMMANDS, adaspec

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def documents():
    """Every document that is here with its text; a source distribution leaves docs/ out."""
    paths = [CHECKOUT / name for name in DOCUMENTS] + sorted((CHECKOUT / "docs").glob("*.md"))
    return [(path, path.read_text(encoding="utf-8")) for path in paths]


def shell_lines(text):
    """The lines of every shell block, comments and continuations taken care of."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def command_lines():
    """Every `adaspec ...`: from shell blocks, and inline where it has arguments."""
    for path, text in documents():
        for words in shell_lines(text):
            if words[0] == "adaspec":
                yield path.name, words[1:]
        for inline in re.findall(r"`adaspec ([^`\n]+)`", text):
            yield path.name, shlex.split(inline)


def resolved(words):
    """The click command of a command line, and what is left of its words."""
    # click keeps the help option of the first context it sees, so this one has the real settings.
    command = adaspec
    context = click.Context(adaspec, info_name="adaspec", **adaspec.context_settings)
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


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, id=" ".join([page, *words])) for page, words in command_lines()],
)
def test_a_documented_command_line_parses(words, monkeypatch):
    # What the README's paths name need not exist here.
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: value)
    ours = takewhile(lambda word: word not in {">", "2>", "|", "&&"}, words)
    command, context, rest = resolved(list(ours))
    if rest and rest != ["--help"]:  # else only a command is named, which is there
        command.make_context(context.info_name, list(rest), parent=context.parent)


@pytest.mark.parametrize("words", list(make_lines()), ids=" ".join)
def test_a_command_line_of_the_makefile_parses_and_its_files_are_there(words):
    command, context, rest = resolved(words)
    made = command.make_context(context.info_name, list(rest), parent=context.parent).params
    named = [path for path in (*made.get("traces", ()), made.get("cost")) if path is not None]
    if named:
        need("eval")
    for path in named:
        assert (CHECKOUT / path).exists(), path


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_is_shown_in_use_and_its_help_has_an_example(name):
    assert any(words[0] == name for _, words in command_lines())
    command, context, _ = resolved([name])
    assert "Example" in command.get_help(context)


def test_every_make_target_that_is_documented_exists():
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    for path, text in documents():
        for target in re.findall(r"`make ([a-z-]+)`", text):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"{path.name}: {target}"


def anchors(text):
    """What a code host makes of a page's headings."""
    found = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found)
    return {heading.replace(" ", "-") for heading in plain}


def test_every_link_of_a_document_leads_somewhere():
    for path, text in documents():
        for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)", text):
            page = path.parent / target if target else path
            assert page.exists(), f"{path.name} links to {target}"
            if anchor:
                there = anchors(page.read_text(encoding="utf-8"))
                assert anchor in there, f"{path.name} links to {target}#{anchor}"


def test_every_name_of_code_that_a_document_gives_exists():
    for path, text in documents():
        for file, name in re.findall(r"`((?:adaspec|tests|eval)/[\w/]+\.py)(?::(\w+))?`", text):
            if not (CHECKOUT / file.split("/")[0]).is_dir():
                continue  # in a source distribution
            assert (CHECKOUT / file).exists(), f"{path.name} names {file}"
            source = (CHECKOUT / file).read_text(encoding="utf-8")
            assert not name or re.search(rf"^(?:(?:def|class) )?{name}\b", source, re.MULTILINE), (
                f"{path.name} names {file}:{name}"
            )


def test_the_readme_is_short():
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
