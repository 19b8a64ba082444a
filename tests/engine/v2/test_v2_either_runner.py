"""What holds on either model runner, asked of V2."""

from test_either_runner import *  # noqa: F403
