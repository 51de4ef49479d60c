"""The line that a bundle records of a quantisation: read, written in one form, with the command's options."""

from __future__ import annotations

import pytest

from kinetic.cli import quantize as command
from kinetic.cli.parser import Parser
from kinetic.errors import UsageError
from kinetic.quantize.settings import OPTIONS, read, write
from kinetic.quantize.types import FILE_TYPES

KEY, NOT = "--override-kv", "--exclude-weights"

CANONICAL = [
    "Q4_K_M",
    "COPY --override-kv general.name=str:",
    "Q8_0 --pure --leave-output-tensor --output-tensor-type Q6_K --token-embedding-type F16",
    "Q4_0 --tensor-type 'blk\\.[0-1]\\.attn_q=Q8_0' --tensor-type attn=Q4_1 --allow-requantize --no-fallback",
    "IQ2_XS --imatrix 'a folder/im.gguf' --include-weights attn_k --include-weights attn_v",
    "IQ2_XS --imatrix im.gguf --exclude-weights -x",
    "F16 --override-kv a.b=int:7 --override-kv c=float:0.1 --override-kv d=bool:true --override-kv e=bool:false",
    "F16 --override-kv 'general.name=str:it'\"'\"'s \u00fcber' --prune-layers 1,2,10",
]


@pytest.mark.parametrize("text", CANONICAL)
def test_the_one_form(text):
    assert write(read(text)) == text


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("15", "Q4_K_M"),
        ("q3_k", "Q3_K_M"),
        ("  Q8_0   --pure --pure ", "Q8_0 --pure"),
        ("q8_0 --output-tensor-type=q6_k --pure", "Q8_0 --pure --output-tensor-type Q6_K"),
        ('q8_0 --tensor-type "ATTN_q=q4_0"', "Q8_0 --tensor-type attn_q=Q4_0"),
        ("q8_0 --prune-layers 03,1,1", "Q8_0 --prune-layers 1,3"),
        ("q8_0 --override-kv b=int:-5 --override-kv a=float:1e-1", f"Q8_0 {KEY} b=int:5 {KEY} a=float:0.1"),
        (f"q8_0 {NOT} b {NOT} a {NOT} b", f"Q8_0 {NOT} a {NOT} b"),
    ],
)
def test_other_forms(text, form):
    assert write(read(text)) == form
    assert write(read(form)) == form


@pytest.mark.parametrize("entry", FILE_TYPES, ids=lambda entry: entry.name)
def test_every_type(entry):
    made = read(write(read(entry.name))).recipe.file_type
    assert (made.number, made.tensor_type, made.mixture) == (entry.number, entry.tensor_type, entry.mixture)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "type is missing"),
        ("Q9", "'Q9' is no type"),
        ("Q8_0 --include-weights \udcff", "are not UTF-8"),
        (f"Q4_0 --prune-layers {'9' * 5000}", "list of layers"),
        ("Q8_0 'a", "can't be read as words"),
        ("Q8_0 --keep-split", "'--keep-split' is no setting"),
        ("Q8_0 --pure=1", "'--pure=1' is no setting"),
        ("Q8_0 model.gguf", "'model.gguf' is no setting"),
        ("Q8_0 --imatrix", "--imatrix needs a value"),
        ("Q8_0 --imatrix ''", "--imatrix needs a value"),
        ("Q8_0 --imatrix a --imatrix b", "--imatrix is given twice"),
        ("Q8_0 --include-weights a --exclude-weights b", "exclude each other"),
        ("Q8_0 --tensor-type '(=q8_0'", "no regular expression"),
        ("Q8_0 --tensor-type 'a{99999999999999999999}=q8_0'", "no regular expression"),
        (r"Q8_0 --tensor-type 'blk\.[[:digit:]]=q8_0'", "programs differ on a ["),
        ("Q8_0 --output-tensor-type q9", "'q9' is no tensor type"),
    ],
)
def test_refusals(text, problem):
    with pytest.raises(UsageError) as caught:
        read(text)
    assert problem in str(caught.value)


NOT_RECORDED = {
    *("-h", "--help", "-q", "--quiet", "--json", "--dry-run", "--max-buffer-size"),  # decide no byte
    "--tensor-type-file",  # recorded as what stands in it
    "--keep-split",  # a bundle holds one file
}


def test_the_same_options_as_the_command():
    """An option that it gets must be recorded, or decide nothing."""
    commands = Parser(prog="kinetic").add_subparsers()
    command.add(commands)
    known = {name for action in commands.choices["quantize"]._actions for name in action.option_strings}
    assert known == OPTIONS.keys() | NOT_RECORDED
