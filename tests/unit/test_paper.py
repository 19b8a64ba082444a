"""The script of the paper's table against what was published."""

import json

import pytest
from checkout import CHECKOUT, need, run_python

from adaspec.trace.importers.formats import import_trace

need("eval")


SHARED = CHECKOUT.parent / "shared"


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
