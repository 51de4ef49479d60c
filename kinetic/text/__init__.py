"""Text in, text out: tokenizers, chat templates and streamed text, all read from a model file's metadata.

The package knows nothing of files, engines or devices. It is handed the metadata
(key -> value) of a GGUF file and is as lazy about it as it can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kinetic.errors import TemplateError

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic.text.template import ChatTemplate, SpecialTexts
    from kinetic.text.tokenizer import Tokenizer

__all__ = ["load_template", "load_tokenizer"]


def load_tokenizer(metadata: Mapping[str, Any], folder: Path | None = None) -> Tokenizer:
    """The tokenizer of a model file. Raises UnsupportedModel (not built in) or MalformedGguf (broken).

    ``folder`` may keep what makes the next start quicker. No answer depends on what is in it.
    """
    from kinetic.text.tokenizer import Tokenizer

    return Tokenizer(metadata, folder)


def load_template(metadata: Mapping[str, Any], tokenizer: SpecialTexts) -> ChatTemplate | None:
    """The chat template of a model file, or None where it has none (base models)."""
    from kinetic.text.template import ChatTemplate

    prefix = "tokenizer.chat_template"
    sources = {key.removeprefix(prefix + "."): value for key, value in metadata.items() if key.startswith(prefix + ".")}
    if prefix in metadata:
        sources["default"] = metadata[prefix]
    for name, source in sources.items():
        if not isinstance(source, str):
            raise TemplateError(f"chat template {name!r} is not text", name="TEMPLATE_NOT_TEXT")
    return ChatTemplate(sources, tokenizer) if "default" in sources else None
