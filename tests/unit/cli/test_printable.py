from adaspec.cli.output import printable


def test_what_would_steer_a_terminal_is_not_printed():
    assert printable("chat\x1b[31m\nedits é") == "chat?[31m?edits é"
