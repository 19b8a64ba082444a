import json
import runpy
import shlex

import pytest
from checkout import CHECKOUT, need, run_python

from adaspec.trace.importers import import_trace

need("eval")
REPORTS = CHECKOUT / "eval" / "reports"
SHARED = CHECKOUT.parent / "shared"


def test_every_report_has_a_command_that_writes_it_from_what_is_there_or_a_reason():
    evidence = runpy.run_path(str(CHECKOUT / "eval" / "evidence.py"))
    folders = {path.name for path in REPORTS.iterdir() if path.is_dir()}
    commands = evidence["reports"]()
    assert folders == {name.partition("/")[0] for name in commands} | set(evidence["BY_HAND"])
    for name, command in commands.items():
        words = shlex.split(command)
        out = f"eval/reports/{name}"
        assert name in evidence["PRINTED"] or words[words.index("-o") + 1] == out
        flags = ["", *words]
        read = {
            word
            for word, flag in zip(words, flags, strict=False)
            if "/" in word and word != out and flag != "--exclude-request"
        }
        # Public recordings beside the checkout are for its user to fetch.
        read = {path for path in read if not path.startswith("../")}
        missing = {path for path in read if not (CHECKOUT / path).exists()}
        assert missing <= set(evidence["PREPARED"]), name
        assert read & set(evidence["PREPARED"]) <= set(evidence["needed"]([command])), name


def test_the_published_table_is_reproduced(tmp_path):
    published = SHARED / "reference" / "specdecode-bench-devsplit.csv"
    recordings = SHARED / "traces" / "specdecode-bench"
    if not (published.is_file() and recordings.is_dir()):
        pytest.skip(f"needs {published} and the public recordings in {recordings}")
    import_trace("specdecode-bench", [recordings], tmp_path / "trace")
    command = ("eval/paper/table.py", tmp_path / "trace", "--published", published, "--json")
    rows = json.loads(run_python(*command).stdout)
    assert len(rows) == 144
    for row in rows:
        wanted, is_random = row["published"], row["policy"].startswith("fixed:ngram")
        assert abs(row["speedup"] - wanted) <= (0.03 * wanted if is_random else 0.011), row
