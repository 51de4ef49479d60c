"""The prompt that a chat template makes of a conversation: what ``kinetic render`` prints.

No weights are read: a model file is opened for its metadata only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic.api.options import Message, require_messages, require_template_options
from kinetic.errors import FileProblem, UsageError

if TYPE_CHECKING:
    from kinetic.text.template import ChatTemplate, Rendered

SUFFIX = ".jinja"
"""A file of this name is a template by itself, with no tokenizer: its special tokens are variables, or empty."""


class NoTokenizer:
    """What stands in for a tokenizer where there is only a template."""

    control_texts: list[str] = []  # noqa: RUF012 - never changed

    def text(self, name: str) -> str:
        return ""


def render(
    path: str | os.PathLike[str],
    messages: Sequence[Message],
    *,
    tools: Sequence[Any] | None = None,
    variables: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
    clock: str = "",
) -> Rendered:
    """The prompt for ``messages`` by the template of a model file, or by a .jinja file.

    ``variables``: more of what the template reads, such as enable_thinking or documents. ``clock``: ISO 8601 time
    for ``strftime_now``, else the present one. Raises FileProblem, UsageError, Malformed, and what the template
    raises: TemplateError or LimitExceeded.
    """
    require_messages(messages)
    require_template_options({"tools": tools or (), "template_vars": variables or {}})
    # Chosen out here, so that what renders a template knows no clock of its own.
    now = clock or datetime.now().isoformat(timespec="seconds")
    return open_template(path).render(
        messages, tools=tools, add_generation_prompt=add_generation_prompt, clock=now, extra=variables
    )


def open_template(path: str | os.PathLike[str]) -> ChatTemplate:
    """The template of a .gguf, .ktc or .jinja file."""
    if os.fspath(path).endswith(SUFFIX):
        return _read_template(Path(path))
    from kinetic.loader import open_model_file
    from kinetic.text import load_template, load_tokenizer

    with open_model_file(path, check="none") as loaded:
        metadata = loaded.gguf.metadata
        template = load_template(metadata, load_tokenizer(metadata))
    if template is None:
        raise UsageError(f"{Path(path).name} has no chat template: name a {SUFFIX} file instead", name="NO_TEMPLATE")
    return template


def _read_template(path: Path) -> ChatTemplate:
    from kinetic.text.template import MAX_TEMPLATE, ChatTemplate

    try:
        with path.open("rb") as file:
            data = file.read(4 * MAX_TEMPLATE + 1)  # no character takes more bytes
        source = data.decode("utf-8", "strict" if len(data) <= 4 * MAX_TEMPLATE else "replace")
    except OSError as error:
        raise FileProblem(f"cannot read {path}: {error.strerror}", name="UNREADABLE") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 (byte {error.start})", name="NOT_UTF8") from None
    return ChatTemplate({"default": source}, NoTokenizer())
