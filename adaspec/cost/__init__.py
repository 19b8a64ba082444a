"""Step-time models: builtin, loaded and fitted; and the two orders of events in an engine.

In a `SYNC` engine a step is decided when the outcome of the last one is known, while the machine
waits. An `ASYNC` one prepares the next step while the last one runs, which hides the host's work.
"""

from typing import Final, Literal

Engine = Literal["sync", "async"]
SYNC: Final = "sync"
ASYNC: Final = "async"
ENGINES = (SYNC, ASYNC)
