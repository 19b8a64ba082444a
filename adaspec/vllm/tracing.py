"""Makes the observers of a session: always counters, and a recorder if there is a trace_dir."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from adaspec.errors import ServingError, TraceError
from adaspec.trace.identity import model_name
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES
from adaspec.trace.writer import lock
from adaspec.vllm.decision_log import DecisionLog
from adaspec.vllm.events import Observer, Serving
from adaspec.vllm.metrics import FOLDER_VARIABLE, POLICY_LABELS, Counters, MetricsObserver
from adaspec.vllm.options import Options
from adaspec.vllm.recorder import Recorder
from adaspec.vllm.trace_output import TraceOutput

FLUSH_S = 5.0
"""How many seconds of a server's traces a kill may cost."""


def observers_of(options: Options, serving: Serving) -> list[Observer]:
    """The observers that the options ask for, meant for the first rank only."""
    folder = os.environ.get(FOLDER_VARIABLE)
    info = {label: getattr(serving, label) or "" for label in POLICY_LABELS}
    counters = Counters(Path(folder) if folder else None, info)
    observers: list[Observer] = [MetricsObserver(counters)]
    observers[0].switched(serving.mode)
    if options.log_decisions_per_s > 0:
        observers.append(DecisionLog(options.log_decisions_per_s))
    if options.trace_dir is not None:
        observers.append(recorder_of(options, serving, counters))
    return observers


def recorder_of(options: Options, serving: Serving, counters: Counters) -> Recorder:
    """The recorder that writes this session's traces.

    In mode 'record', trace_dir is the trace itself, and an existing trace is continued. In other
    modes, each run makes new folders in trace_dir: `logged-..`, and `dense-..` for the requests
    that are recorded.
    """
    assert options.trace_dir is not None
    root = Path(options.trace_dir)
    recording = options.mode == "record"
    # Engines in different containers may share a folder and have the same process id, so the name
    # has a random part.
    run = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"
    dense_folder = root / f"dense-{run}"
    if recording:
        dense_folder = root / ("" if serving.replica is None else f"replica-{serving.replica}")
        check_can_continue(dense_folder, manifest_of("dense", options, serving))

    def output(kind: str, folder: Path) -> TraceOutput:
        manifest = manifest_of(kind, options, serving)
        return TraceOutput(folder, root, manifest, options.max_trace_bytes, FLUSH_S, counters.lost)

    return Recorder(
        output("dense", dense_folder) if serving.record_fraction > 0 else None,
        None if recording else output("logged", root / f"logged-{run}"),
        serving,
        counters.lost,
    )


def check_can_continue(folder: Path, manifest: Manifest) -> None:
    """Refuse a folder with a trace that rows cannot be appended to, so that the start fails."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        os.close(lock(folder))
        difference = manifest.difference(TraceReader(folder).manifest)
    except BlockingIOError:
        raise ServingError(
            f"trace_dir '{folder}': another process is recording into it: give each server a "
            "folder of its own"
        ) from None
    except (TraceError, OSError) as error:
        raise ServingError(
            f"trace_dir '{folder}' cannot be recorded into ({error}): give an empty folder"
        ) from error
    if difference:
        raise ServingError(
            f"trace_dir '{folder}' holds another kind of trace: {difference}: give another folder"
        )


def manifest_of(kind: str, options: Options, serving: Serving) -> Manifest:
    """The manifest of this session's dense or logged trace."""
    is_dense = kind == "dense"
    cap = serving.record_cap or None if is_dense else None
    return Manifest(
        kind=kind,
        target=options.target or model_name(serving.target),
        drafter=None if serving.drafter is None else model_name(serving.drafter),
        tokenizer=None if serving.tokenizer is None else model_name(serving.tokenizer),
        vocabulary_hash=serving.vocabulary_hash,
        engine="vllm",
        engine_version=serving.engine_version,
        hardware=serving.hardware,
        sampling=dict(options.sampling),
        neural_cap=cap,
        draft_cap=cap,
        confidences=CONFIDENCES if cap else (),
        fingerprint=None if is_dense else f"{serving.policy} {serving.version}".rstrip(),
        source="shadow drafting in vLLM"
        if is_dense
        else f"live decisions in vLLM, mode {serving.mode}",
    )
