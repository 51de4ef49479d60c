"""Opens a model's file and its engine, as ``Model`` wants them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from kinetic import store
from kinetic.api.describe import formats_not_built_in
from kinetic.api.speed_ups import SpeedUps
from kinetic.engine import Engine
from kinetic.errors import UnsupportedModel
from kinetic.loader import Check, LoadedFile, open_model_file
from kinetic.models import ARCHITECTURES
from kinetic.types import PackCache


def open_file(model: str | os.PathLike[str], check: Check, progress: Callable[[str], None] | None) -> LoadedFile:
    """A model by its path or name."""
    loaded = open_model_file(store.resolve(model), check=check)
    if loaded.about and progress:
        progress(f"bundle {loaded.gguf.paths[0].name}: {loaded.about}")
    loaded.check_ahead()
    return loaded


def open_engine(
    loaded: LoadedFile,
    backend: str,
    threads: int,
    context: int,
    cache: PackCache | None,
    progress: Callable[[str], None] | None,
    wanted: SpeedUps,
) -> Engine:
    """The engine of an open model. Raises what ``Model`` raises."""
    # Of an unknown architecture the engine complains itself, and that counts more.
    if loaded.gguf.metadata.get("general.architecture") in ARCHITECTURES:
        for reason in formats_not_built_in(loaded.gguf):
            raise UnsupportedModel(reason, name="UNSUPPORTED_WEIGHT_TYPE")
    # Backends know no folders of the user's. Whoever set this variable knows better.
    if not os.environ.get("KINETIC_KERNELS"):
        folder = store.folder("kernels")
        if store.writable("kernels") is None and progress:
            progress(f"{folder} can't be written, so compiled kernels are kept in the temporary folder")
        os.environ["KINETIC_KERNELS"] = str(folder)
    options: dict[str, Any] = {"backend": backend, "threads": threads, "progress": progress}
    clock = time.perf_counter
    draft = wanted.open_draft(loaded, clock=clock, **options)
    try:
        engine = Engine(
            loaded.gguf,
            loaded.weights,
            context=context,
            packs=cache,
            off=wanted.off,
            draft=draft,
            clock=clock,
            **options,
        )
    except BaseException:
        if draft:
            draft.close()
        raise
    wanted.prepare(engine, loaded)
    return engine
