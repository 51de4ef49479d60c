"""Model families of the built-in models, one file each, found by their names in this folder.

A module gives ``mixed()``, a model of several formats; one that may have experts also ``experts()``;
``llama`` also ``of_format(kind)``, one of a single format.
"""

from __future__ import annotations

from conformance.found import modules

FAMILIES = dict(modules(__name__))
