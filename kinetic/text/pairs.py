"""A query and a document as one text, for models that judge how well the one answers the other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kinetic.errors import TemplateError
from kinetic.text.guard import Guard, free_character
from kinetic.text.tokenizer import Tokenizer

TEMPLATE = "tokenizer.chat_template.rerank"
QUERY, DOCUMENT = "{query}", "{document}"
PLACES = re.compile(f"{re.escape(QUERY)}|{re.escape(DOCUMENT)}")


def rank_template(metadata: Mapping[str, Any]) -> str:
    """What a file puts around a query and a document, with ``{query}`` and ``{document}`` in their places; or ""."""
    template = metadata.get(TEMPLATE, "")
    if not isinstance(template, str) or (template and (QUERY not in template or DOCUMENT not in template)):
        raise TemplateError(f"{TEMPLATE} is no text with {QUERY} and {DOCUMENT} in it", name="BAD_RANK_TEMPLATE")
    return template


def encode_pair(tokenizer: Tokenizer, template: str, query: str, document: str) -> list[int]:
    """Token ids by the template; without one BOS, the query, EOS and a separator as the model wants them, the document
    and what ends a text. No spelling of a control token in either text stands for that token."""
    if not template:
        ids = [] if tokenizer.bos is None or not tokenizer.add_bos else [tokenizer.bos]
        ids += tokenizer.encode(query, add_special=False, parse_special=False) + tokenizer.between
        ids += tokenizer.encode(document, add_special=False, parse_special=False)
        return ids + tokenizer.closing
    character = free_character(template, query, document)
    guard = Guard(character, tokenizer.control_texts)
    guarded = {QUERY: guard.protect(query), DOCUMENT: guard.protect(document)}
    text = PLACES.sub(lambda match: guarded[match[0]], template)
    return tokenizer.encode(text, add_special=False, parse_special=True, guard=character)
