"""Makes the observers of a session: always counters, and a recorder if requests are recorded."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any

from adaspec.trace.identity import model_name
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.choice import Serving
from adaspec.vllm.compatibility import installed_version
from adaspec.vllm.metrics import FOLDER_VARIABLE, Counters
from adaspec.vllm.recorder import Recorder, TraceOutput

FLUSH_S = 5.0
"""How many seconds of a server's trace a kill may cost."""


def observers_of(serving: Serving) -> list[Any]:
    """The observers that the options ask for, meant for the first rank only."""
    folder, options = os.environ.get(FOLDER_VARIABLE), serving.options
    info = {"policy": serving.name, "drafter": options.model, "baseline": options.baseline}
    counters = Counters(Path(folder) if folder else None, info)
    counters.switched(options.mode)
    return [counters, *([recorder_of(serving, counters)] if options.densely_recorded else [])]


def recorder_of(serving: Serving, counters: Counters) -> Recorder:
    """The recorder that writes this session's trace.

    In mode 'record', trace_dir is the trace itself, and an existing trace is continued. In other
    modes, each run makes a new folder in trace_dir.
    """
    options = serving.options
    assert options.trace_dir is not None
    root = Path(options.trace_dir)
    if options.mode == "record":
        folder = root / ("" if options.replica is None else f"replica-{options.replica}")
    else:
        # Engines in different containers may share a folder and have the same process id, so the
        # name has a random part.
        folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"
    output = TraceOutput(
        folder,
        root,
        manifest_of(serving),
        max_bytes=options.max_trace_bytes,
        flush_s=FLUSH_S,
        lost=lambda reason, rows: counters.add(f"dropped_rows/{reason}", rows),
    )
    if options.mode == "record":  # so a folder that cannot be gone on with ends the start
        output.open()
    return Recorder(output)


def manifest_of(serving: Serving) -> Manifest:
    """The manifest of this session's trace."""
    options, target, cap = serving.options, serving.target, serving.record_cap or None
    return Manifest(
        target=model_name(target.name),
        drafter=None if options.model is None else model_name(options.model),
        tokenizer=model_name(target.tokenizer),
        vocabulary_hash=target.vocabulary_hash,
        engine="vllm",
        engine_version=installed_version(),
        hardware=options.hardware,
        neural_cap=cap,
        draft_cap=cap,
        confidences=CONFIDENCES if cap else (),
        source=f"requests recorded in vLLM, mode {options.mode}",
    )
