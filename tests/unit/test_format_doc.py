"""FORMAT.md says what the code does: its example, its limits, its fields, its tables of codes and names."""

import ast
import re
from pathlib import Path

import pytest

from conformance import certificate
from ktc import digest, limits, manifest, signature
from ktc.fields import ListOf, Table
from receipts import idle, sign, withhold
from receipts.encode import canonical_bytes, question_id, read_receipt, receipt_id, to_json
from receipts.errors import VERDICTS
from receipts.schema import PLAIN_SAMPLING, RECEIPT, SAMPLERS
from tests.support.sample_receipts import SEED, sample
from tests.unit.test_receipt_encode import MUTANTS, NOT_THE_QUESTION

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "FORMAT.md").read_text(encoding="utf-8")
EXAMPLE = TEXT.split("```json\n")[1].split("```")[0]
DATA = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*?) \|", TEXT, re.MULTILINE)


def paths(field, path=""):
    """Dotted names of all fields, ``[]`` after a list of tables."""
    if isinstance(field, Table):
        return [leaf for name, inner in field.fields.items() for leaf in paths(inner, f"{path}.{name}".lstrip("."))]
    if isinstance(field, ListOf) and isinstance(field.item, Table):
        return paths(field.item, path + "[]")
    return [path]


def test_the_example_is_a_receipt_and_has_these_ids():
    receipt = read_receipt(EXAMPLE.encode())
    assert to_json(receipt) == EXAMPLE
    assert receipt.record == sample()
    assert receipt.signatures == [sign.sign_record(sample(), SEED)]
    for value in (receipt_id(sample()), question_id(sample()), signature.key_id(signature.key_pair(SEED).public)):
        assert f"`{value}`" in TEXT
    data = canonical_bytes(sample())
    assert f"{len(data)} bytes, beginning `{data[:16].hex(' ')}`" in TEXT


def test_limits():
    documented = {name: int(value) for name, value, _ in DATA if name.startswith("MAX_")}
    assert documented == {name: value for name, value in vars(limits).items() if name.startswith("MAX_")}


def test_fields_stand_in_the_schemas_order():
    documented = [name for name, _, part in DATA if part in ("Q", "A", "C", "-")]
    assert documented == paths(RECEIPT)


@pytest.mark.parametrize("path", MUTANTS)
def test_the_part_column_is_true(path):
    if path in ("type", "version", "prompt.tokens", "parent.root", "challenge", "crit", "ext"):
        return  # refused when changed alone, or hashed through another field
    name = re.sub(r"\.\d+", "[]", path).removesuffix("[]")
    part = next(
        part for field, _, part in DATA if field in (name, name.replace("ext.note", "ext")) or f"{name}[]" in field
    )
    assert (part == "Q") == (path not in NOT_THE_QUESTION and not path.startswith("parent."))


def test_domain_strings():
    for value in vars(digest).values():
        if isinstance(value, bytes):
            assert f"`{value.decode()[:-1]}\\0`" in TEXT


def test_words_and_codes():
    assert ", ".join(f"`{name}`" for name in SAMPLERS) in TEXT.replace("\n", " ")
    assert f"DSSEv1 {len(sign.PAYLOAD_TYPE)} {sign.PAYLOAD_TYPE} LENGTH" in TEXT
    for code, word in VERDICTS.items():
        if code not in (1, 3):
            assert f"| {code} | {word} |" in TEXT


def test_plain_values_of_what_is_off():
    table = TEXT.split("**Settings that are off.**")[1].split("**Stop reasons.**")[0]
    rows = [row.rpartition(" | ")[2] for row in re.findall(r"^\| [A-Za-z ]+ \| (.*) \|$", table, re.MULTILINE)]
    plain = PLAIN_SAMPLING | {"dry_sequence_breakers": "`[]`"}
    assert rows[1:] == [", ".join(f"`{name}` {plain[name]}" for name in names) for _, names in idle._OFF]


def test_every_name_a_check_step_gives_is_raised_somewhere():
    raised = set()
    for folder in ("ktc", "receipts", "kinetic/api", "kinetic/quantize"):
        for file in (ROOT / folder).glob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant):
                    raised.add(node.value)
    receipt = TEXT.split("## Checking a receipt")[1].split("## Verdicts")[0]
    steps = receipt + TEXT.split("## Checking a bundle")[1].split("## Versions of the bundle")[0]
    named = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", steps)) - {
        "MAX_FILE_BYTES",
        "MAX_SIGNATURES",
        "MAX_SIGNATURE_BYTES",
        "DIFFERS",
    }
    assert named <= raised


def rows(first, last):
    """Names in the first column of the tables between two lines of the document."""
    found = re.findall(r"^\| `([a-z_0-9]+)(?:\[\])?` \| ", TEXT.split(first)[1].split(last)[0], re.MULTILINE)
    assert found
    return found


@pytest.mark.parametrize(
    ("table", "first", "last"),
    [
        (manifest.MANIFEST, "## Manifest\n", "An entry of `sections`:"),
        (manifest.SECTION, "An entry of `sections`:", "| kind | how many |"),
        (manifest.PROFILE, "A profile says how to run", "A derivation is a claim"),
        (manifest.DERIVATION, "A derivation is a claim", "Where `tool` is `kinetic quantize`"),
        (withhold.OPENING, "## Openings\n", "An opening is a receipt's"),
        (certificate.FORM, "# Device certificates\n", "| field of a case |"),
        (certificate.CASE, "| field of a case |", "A reader does steps 1 to 3"),
    ],
)
def test_the_other_tables_have_every_field(table, first, last):
    assert rows(first, last) == list(table.fields)


def test_the_name_of_a_certificate():
    text = TEXT.split("# Device certificates\n")[1]
    assert f"`{certificate.DOMAIN.decode()[:-1]}\\0`" in text and f"`{certificate.PAYLOAD_TYPE}`" in text
    for word in re.findall(r"1[123] `([A-Z_]+)`", text):
        assert f'name="{word}"' in (ROOT / "conformance" / "certificate.py").read_text(encoding="utf-8")
