"""How a model is opened: its file, what is asked for beside it, and the engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kinetic import models, store
from kinetic.adapters import Adapter, Asked, close_all, fit, open_adapters
from kinetic.api.describe import formats_not_built_in
from kinetic.api.speed_ups import SpeedUps
from kinetic.backends import AUTO, NAMES, known, layer_count
from kinetic.bits import round_f32
from kinetic.engine import Engine
from kinetic.errors import UnsupportedModel, UsageError
from kinetic.loader import Check, LoadedFile, open_model_file
from kinetic.types import SPEED_UPS, PackCache, RopeOverrides

if TYPE_CHECKING:
    from kinetic.backends.base import Ops, Weights

__all__ = [
    "Adapter",
    "Asked",
    "choose_device",
    "close_all",
    "open_adapters",
    "open_engine",
    "open_file",
    "rope_overrides",
]

NONE = SpeedUps(frozenset(SPEED_UPS))

CLOCK = time.perf_counter
"""What passes cost is measured with; nothing else knows of it."""

DEVICES = ("auto", "cpu", "reference", "opencl[:N]", "cuda[:N]")


def choose_device(
    device: str, progress: Callable[[str], None] | None, gpu_layers: int | str = "auto"
) -> tuple[str, int | None]:
    """The backend of this name, and how many layers are to be on it, if it is a device that layers can be on.

    'auto' is CUDA, else an OpenCL GPU, else the CPU, with a line to ``progress`` for each that is passed over. With 0
    layers a device is left alone. Raises UsageError for what means nothing.
    """
    if device != "auto" and not known(device):
        raise UsageError(f"there is no device {device}: this build has {', '.join(DEVICES)}", name="NO_DEVICE")
    layers = layer_count(gpu_layers)
    if device in NAMES:
        if layers not in (AUTO, 0):
            message = (
                f"the device is {device}, so no layers can be anywhere else: name another --device, or no --gpu-layers"
            )
            raise UsageError(message, name="NO_GPU_LAYERS")
        return device, None
    if layers == 0:
        return "cpu", None
    if device == "auto":
        from kinetic.backends.gpu import choose

        device = choose.best(progress)
    return device, None if device == "cpu" else layers


def open_file(model: str | os.PathLike[str], check: Check, progress: Callable[[str], None] | None) -> LoadedFile:
    loaded = open_model_file(store.resolve(model), check=check)
    try:
        models.require_model(loaded.gguf)
    except BaseException:
        loaded.close()
        raise
    if loaded.about and progress:
        progress(f"bundle {loaded.gguf.paths[0].name}: {loaded.about}")
    loaded.check_ahead()
    return loaded


def open_engine(
    loaded: LoadedFile,
    device: str,
    threads: int,
    context: int,
    cache: PackCache | None,
    progress: Callable[[str], None] | None,
    adapters: Iterable[Adapter] = (),
    rope: RopeOverrides | None = None,
    wanted: SpeedUps = NONE,
    gpu_layers: int | None = None,
    cpu_moe: int | str = 0,
    weights: Weights | None = None,
    watch: Callable[[Ops], Ops] | None = None,
) -> Engine:
    """The engine of an open file. ``weights`` are the file's unless others are given. ``device`` and ``gpu_layers``
    are what ``choose_device`` gave, ``cpu_moe`` is as in ``backends.open_backend``."""
    gguf, weights = loaded.gguf, loaded.weights if weights is None else weights
    # Of an unknown architecture the engine complains itself, and that counts more.
    if gguf.metadata.get("general.architecture") in models.ARCHITECTURES:
        for reason in formats_not_built_in(gguf):
            raise UnsupportedModel(reason, name="UNSUPPORTED_WEIGHT_TYPE")
    adapters = tuple(adapters)
    fitted = fit(adapters, gguf, weights)
    is_plain = weights is loaded.weights and watch is None  # else it isn't that file's states that would be kept

    options: dict[str, Any] = {"backend": device, "threads": threads, "progress": progress, "clock": CLOCK}
    prefixes = wanted.prefix_cache(loaded, adapters, rope) if is_plain else None
    draft = wanted.open_draft(loaded, **options, gpu_layers=None if gpu_layers is None else AUTO)
    try:
        engine = Engine(
            models.asked(gguf, rope) if rope else gguf, weights, context=context, packs=cache, watch=watch,
            adapters=fitted, off=wanted.off, draft=draft, prefixes=prefixes,
            warm_bytes=wanted.cache_ram, gpu_layers=gpu_layers,
            cpu_moe=layer_count(cpu_moe, "n-cpu-moe"), **options,
        )  # fmt: skip
    except BaseException:
        wanted.close_draft(draft)
        raise
    wanted.prepare(engine, loaded)
    return engine


def choose_kernel_folder(progress: Callable[[str], None] | None) -> None:
    """Backends know no folders of the user's. Whoever set this variable knows better."""
    if not os.environ.get("KINETIC_KERNELS"):
        folder = store.folder("kernels")
        if store.writable("kernels") is None and progress:
            progress(f"{folder} can't be written, so compiled kernels are kept in the temporary folder")
        os.environ["KINETIC_KERNELS"] = str(folder)


def rope_overrides(given: RopeOverrides | Mapping[str, Any] | None) -> RopeOverrides:
    """Settings of rotary positions, checked and rounded to binary32; llama.cpp's values for "as the file says" are
    taken too. Raises UsageError."""
    if given is None:
        return RopeOverrides()
    values = dict(given) if isinstance(given, Mapping) else vars(given)
    if unknown := sorted(set(values) - set(RopeOverrides.__dataclass_fields__)):
        raise UsageError(f"there is no setting {', '.join(unknown)} of rotary positions", name="UNKNOWN_OPTION")
    found = RopeOverrides(**{name: _checked(name, value) for name, value in values.items()})
    if found.rope_scale and found.rope_freq_scale:
        raise UsageError("the rope scale is 1 over the frequency scale: give one of them", name="ROPE_SCALE_TWICE")
    return found


def _checked(name: str, value: Any) -> Any:
    default = getattr(RopeOverrides, name)
    if name == "rope_scaling":
        if value not in ("", "none", "linear", "yarn"):
            raise _bad(name, value, "none, linear or yarn")
        return value
    if value is None and default is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if name == "yarn_orig_ctx" else int | float):
        raise _bad(name, value, "a whole number" if name == "yarn_orig_ctx" else "a number")
    if name == "yarn_orig_ctx":
        if not 0 <= value <= models.MAX_CONTEXT:
            raise _bad(name, value, f"from 0 to {models.MAX_CONTEXT}")
        return value
    if default is None and value < 0:
        return None  # so llama.cpp says that nothing is asked for
    least = 0.0 if name == "yarn_ext_factor" or default == 0.0 else SMALLEST
    most = 1.0 if name == "yarn_ext_factor" else 1 / SMALLEST
    if not least <= value <= most or 0 < value < SMALLEST:
        raise _bad(name, value, f"from {least:g} to {most:g}" if least or most == 1 else "a positive number")
    return float(round_f32(value)) + 0.0


SMALLEST = 2.0**-40
"""What scales, bases and factors are at least, and at most 1 over it: far more than anybody could mean."""


def _bad(name: str, value: object, expected: str) -> UsageError:
    flag = name.replace("_", "-")
    return UsageError(f"--{flag} is {value!r}, but must be {expected}", name=f"BAD_{name.upper()}")
