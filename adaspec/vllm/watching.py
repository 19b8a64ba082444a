"""Who watches a session: counters always, a recorder where there is a trace_dir."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from adaspec.errors import ServingError, TraceError
from adaspec.staging import hold
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.counters import FOLDER_VARIABLE, Counters
from adaspec.vllm.observer import Observer, Serving
from adaspec.vllm.options import Options
from adaspec.vllm.recorder import Recorder
from adaspec.vllm.scrambling import Scrambler, secret_in
from adaspec.vllm.shelf import Shelf
from adaspec.vllm.tally import Tally

FLUSH_S = 60.0
"""What a kill may cost a server's traces."""
FLUSH_RECORDING_S = 5.0


def observers_of(options: Options, serving: Serving) -> list[Observer]:
    """Who watches this session, as these options ask for it; only on the first rank."""
    counters = Counters(_folder_of_counters(), _about(serving))
    found: list[Observer] = [Tally(counters)]
    if options.trace_dir is not None:
        found.append(recorder_of(options, serving, counters))
    return found


def recorder_of(options: Options, serving: Serving, counters: Counters) -> Recorder:
    """What writes this session's traces.

    In mode 'record' trace_dir is the trace, gone on with where it exists. Else each run writes
    folders of its own into it: `logged-..`, and `dense-..` of the requests that are recorded.
    """
    assert options.trace_dir is not None
    root = Path(options.trace_dir)
    recording = options.mode == "record"
    if recording:
        replica = "" if serving.replica is None else f"replica-{serving.replica}"
        dense_folder = root / replica
        check_goes_on(dense_folder, dense_manifest(options, serving))
    else:
        # Engines in containers of their own may share a folder and have the same process id.
        run = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"
        dense_folder = root / f"dense-{run}"

    def shelf(folder: Path, manifest: Manifest) -> Shelf:
        flush_s = FLUSH_RECORDING_S if recording else FLUSH_S
        return Shelf(folder, root, manifest, options.max_trace_bytes, flush_s, counters.lost)

    dense = logged = None
    if serving.record_fraction > 0:
        dense = shelf(dense_folder, dense_manifest(options, serving))
    if not recording:
        logged = shelf(root / f"logged-{run}", logged_manifest(options, serving))
    scrambler = None
    if options.scramble_key is not None:
        scrambler = Scrambler(secret_in(Path(options.scramble_key)), serving.vocabulary)
    return Recorder(
        dense,
        logged,
        record_cap=serving.record_cap,
        proposes=serving.mode == "serve",
        propensity=serving.propensity,
        lost=counters.lost,
        scrambler=scrambler,
    )


def check_goes_on(folder: Path, manifest: Manifest) -> None:
    """Refuse at start a folder whose trace the first row could not be appended to."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        os.close(hold(folder))
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


def dense_manifest(options: Options, serving: Serving) -> Manifest:
    """What a dense trace of this session says of itself."""
    cap = serving.record_cap or None
    return Manifest(
        kind="dense",
        target=serving.target,
        drafter=serving.drafter,
        tokenizer=serving.tokenizer,
        vocabulary_hash=serving.vocabulary_hash,
        neural_cap=cap,
        draft_cap=cap,
        confidences=CONFIDENCES if cap else (),
        engine="vllm",
        engine_version=serving.engine_version,
        hardware=serving.hardware,
        sampling=dict(options.sampling),
        scrambled=options.scramble_key is not None,
        source="shadow drafting in vLLM",
    )


def logged_manifest(options: Options, serving: Serving) -> Manifest:
    """What a logged trace of this session says of itself."""
    version = f" {serving.version}" if serving.version else ""
    return Manifest(
        kind="logged",
        target=serving.target,
        drafter=serving.drafter,
        tokenizer=serving.tokenizer,
        vocabulary_hash=serving.vocabulary_hash,
        engine="vllm",
        engine_version=serving.engine_version,
        hardware=serving.hardware,
        sampling=dict(options.sampling),
        fingerprint=f"{serving.policy}{version}",
        scrambled=options.scramble_key is not None,
        source=f"live decisions in vLLM, mode {serving.mode}",
    )


def _folder_of_counters() -> Path | None:
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named and Path(named).is_dir() else None


def _about(serving: Serving) -> dict[str, object]:
    return {
        "policy": serving.policy,
        "version": serving.version,
        "mode": serving.mode,
        "drafter": serving.drafter or "",
        "why": serving.why,
    }
