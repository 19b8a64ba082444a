"""Folders of models that appear complete or not at all, however early their writer is killed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DONE = "model.safetensors"
"""The file whose presence says that a model's folder is complete."""


@contextmanager
def staged_model_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to fill beside `folder`, which takes its place once the block succeeds.

    A folder that a killed writer left there is removed. Where `folder` exists already, files of
    other names stay in it, and the weights come last.
    """
    # Resolved, for '.' has no name to put anything beside.
    final = folder.resolve()
    partial = final.with_name(f"{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if not final.exists():
        partial.rename(final)
        return
    for file in sorted(partial.iterdir(), key=lambda file: file.name == DONE):
        file.replace(final / file.name)
    partial.rmdir()
