import dataclasses
import json

import pytest
from click.testing import CliRunner

from adaspec.cli.bench_command import command
from adaspec.profile import decide

MINE = decide.DecideRow("mine", True, 3, 1, 64, *(float(at) for at in range(20, 26)))
DEAF = dataclasses.replace(MINE, policy="deaf", evidence=False, drafted=2, batch=8)


@pytest.mark.parametrize("words", ["0", "abc", "1k,-3", "", "2.5", "99999999999"])
def test_context_lengths_that_are_none_are_refused(words):
    result = CliRunner().invoke(command, ["decide", "--contexts", words])
    assert result.exit_code == 2
    assert "is not a whole number from 1 to 1048576" in result.output


def test_rows_are_printed_or_written_as_json(monkeypatch):
    asked = []

    def measured(policies, *options):
        asked.append(options[-1])
        return [MINE, DEAF, dataclasses.replace(MINE, batch=8, median_us=50.0)]

    monkeypatch.setattr(decide, "find_benched", asked.append)
    monkeypatch.setattr(decide, "bench_decide", measured)
    said = json.loads(CliRunner().invoke(command, ["decide", "--json"]).stdout)["rows"][0]
    assert said == dataclasses.asdict(MINE)
    words = ["decide", "--policy", "mine", "--policy", "deaf", "--cold"]
    table = CliRunner().invoke(command, words).stdout
    assert asked == [(), False, ("mine", "deaf"), True]
    assert "mine" in table and "deaf" in table
