"""How a request's workload and id travel through an engine: inside the engine's own request id.

A client that names them sets its request id to `adaspec:WORKLOAD:ID:` (both percent-encoded; over
HTTP in the header X-Request-Id), and whatever an engine puts around that does no harm.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

SERVED = "served"
"""The workload of requests whose clients name none."""

_NAMED = re.compile(r"adaspec:([^:]+):([^:]+):")
_SAMPLE = re.compile(r"^(\d+)_")


def engine_id(workload: str, id: str) -> str:
    """The request id under which an engine's recording knows (workload, id)."""
    return f"adaspec:{quote(workload, safe='')}:{quote(id, safe='')}:"


def trace_key(request: str) -> tuple[str, str]:
    """The (workload, id) that an engine's request id stands for."""
    found = _NAMED.search(request)
    if found is None:
        return SERVED, request
    sample = _SAMPLE.match(request)
    behind = f"#{sample[1]}" if sample else ""  # one of several samples of a prompt
    return unquote(found[1]), unquote(found[2]) + behind
