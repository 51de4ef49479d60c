"""The receipt that FORMAT.md shows: ``python -m tools.make_format_example`` puts it and its ids there anew."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ktc.signature import key_id, key_pair
from receipts.encode import Receipt, canonical_bytes, question_id, receipt_id, to_json
from receipts.sign import sign_record
from tests.support.sample_receipts import SEED, sample

DOCUMENT = Path(__file__).resolve().parent.parent / "FORMAT.md"


def main() -> int:
    """Write the document if it changes; 1 if it did."""
    before = DOCUMENT.read_text(encoding="utf-8")
    after = renewed(before)
    DOCUMENT.write_text(after, encoding="utf-8")
    return int(after != before)


def renewed(text: str) -> str:
    """The document with the example, its ids and its canonical form as they are now."""
    record = sample()
    shown = to_json(Receipt(record, [sign_record(record, SEED)]))
    text = re.sub(r"(?s)(```json\n).*?(```\n)", lambda found: found[1] + shown + found[2], text, count=1)
    ids = {
        "`receipt_id`": receipt_id(record),
        "`question_id`": question_id(record),
        "key id": key_id(key_pair(SEED)[1]),
    }
    for name, digest in ids.items():
        text = re.sub(rf"(\| {name} \| `)[0-9a-f]{{64}}(` \|)", rf"\g<1>{digest}\g<2>", text, count=1)
    data = canonical_bytes(record)
    return re.sub(r"[0-9]+ bytes, beginning `[0-9a-f ]+`", f"{len(data)} bytes, beginning `{data[:16].hex(' ')}`", text)


if __name__ == "__main__":
    sys.exit(main())
