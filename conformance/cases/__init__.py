"""The cases, one file per property; ``conformance.case`` says what is in one. A new file here is run from then on."""

from __future__ import annotations

from conformance.found import modules

PROPERTIES = dict(modules(__name__))
