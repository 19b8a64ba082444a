from adaspec.evaluate.render.markdown import table_markdown, text_markdown
from adaspec.evaluate.render.table import Mark, Span, code, foreign, simple_table


def test_names_from_outside_are_escaped_and_code_gets_a_fence_that_holds():
    assert text_markdown(foreign("my_work|load <b>")) == "my\\_work\\|load \\<b\\>"
    assert text_markdown(code("a`b``c")) == "``` a`b``c ```"
    assert text_markdown(code("a\nb")) == "`a b`"


def test_a_table_has_its_title_its_sentence_and_bars_escaped():
    strong = Span("1.2x", marks=(Mark.STRONG,))
    table = simple_table("Speedups", ["policy", "at 1"], [[code("a|b"), strong]], sentence="So.")
    assert table_markdown(table, 3).splitlines() == [
        "### Speedups",
        "",
        "So.",
        "",
        "| policy | at 1 |",
        "| :-- | --: |",
        "| `a\\|b` | **1.2x** |",
    ]
