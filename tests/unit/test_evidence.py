"""`eval/evidence.py` knows how every committed report is made."""

import runpy
import shlex

from checkout import CHECKOUT, need

REPORTS = CHECKOUT / "eval" / "reports"


def test_every_report_has_a_command_that_writes_it_from_what_is_there_or_a_reason():
    need("eval")
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
        missing = {path for path in read if not (CHECKOUT / path).exists()}
        assert missing <= set(evidence["PREPARED"]), name
        assert read & set(evidence["PREPARED"]) <= set(evidence["needed"]([command])), name
