"""What a run of the suite was about: facts for a report, and for a certificate."""

from __future__ import annotations

import time
from typing import Any

from conformance.setting import Setting
from kinetic import __version__
from kinetic.api import machine
from kinetic.api.probe import describe_backend, identity_of, instruction_sets
from kinetic.types import PROFILE
from receipts.report.shown import whole


def facts(setting: Setting) -> list[tuple[str, str]]:
    backend = describe_backend(setting.device)
    models = ", ".join(subject.name for subject in setting.subjects if setting.models) or "built in"
    lines = [
        ("program", f"kinetic {__version__}"),
        ("arithmetic", PROFILE),
        ("engine", backend["engine_id"]),
        ("device", f"{setting.device}: {backend['device_name']}, {setting.threads} threads"),
        ("level", setting.level),
        ("models", models),
    ]
    return lines + [("instruction sets", _instruction_sets())] if setting.device == "cpu" else lines


def _instruction_sets() -> str:
    here, lacking = instruction_sets()
    return ", ".join(here) + (f" (this processor lacks {', '.join(lacking)})" if lacking else "")


def certified(setting: Setting) -> dict[str, Any]:
    """All fields of a certificate but those about cases."""
    found = machine.describe()
    named = {
        "system": found.system,
        "architecture": found.architecture,
        "processor": found.processor,
        "cores": str(found.cores),
        "features": " ".join(found.features),
        "threads": str(setting.threads),
    }
    if setting.device == "cpu":
        named["instruction_sets"] = " ".join(instruction_sets()[0])
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "program": f"kinetic {__version__}",
        "profile": PROFILE,
        **describe_backend(setting.device),
        "level": setting.level,
        "machine": named,
        "models": [
            {"name": whole(file.name), "blake3": file.blake3}
            for path in setting.models
            for file in identity_of(path).files
        ],
    }
