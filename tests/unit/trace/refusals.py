from collections.abc import Callable

import pytest


def refusal(error: type[Exception], call: Callable[..., object], *asked: object, **named: object):
    """The one line that says why a call is refused."""
    with pytest.raises(error) as caught:
        call(*asked, **named)
    said = str(caught.value)
    assert said.isprintable()
    return said
