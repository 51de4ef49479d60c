"""Exports, read by programs and rules that are not ours: each signature is checked again from its specification."""

import base64
import hashlib
import json

import cbor2
import pytest

from ktc.errors import KtcError, SignatureProblem, Unverifiable
from ktc.signature import KeyPair, key_id, key_pair
from receipts import export
from receipts.encode import Receipt, read_receipt, to_cbor, to_json
from receipts.identity import canonical_bytes, question_id, receipt_id
from receipts.rewrite import encoded, form_of, with_signature
from receipts.sign import sign_record
from receipts.verify import Verdict
from receipts.withhold import withhold
from tests.support.sample_receipts import SEED, changed, full_sample, sample

PAIR, OTHER = key_pair(SEED), key_pair(bytes(range(1, 33)))
RECORDS = {
    "plain": sample(),
    "full": full_sample(),
    "withheld": withhold(sample(), bytes(32)),
    "unicode": sample(text=" red “blue” \U0001f638\u2028 green"),
    "wordless": sample(output=[0], text=""),
}
NEEDS_DSSE = "needs securesystemslib with its extra crypto, a reader of DSSE that is not ours"
NEEDS_INTOTO = "needs in-toto-attestation, a reader of statements that is not ours"


@pytest.fixture(params=RECORDS.values(), ids=RECORDS)
def record(request):
    return request.param


def signed(record, *pairs):
    return Receipt(record, [sign_record(record, pair.seed) for pair in pairs])


def opened(envelope):
    """Payload type, payload and signatures of a DSSE envelope, as its protocol document describes it."""
    table = json.loads(envelope)
    assert list(table) == ["payload", "payloadType", "signatures"]
    signatures = [(one["keyid"], base64.b64decode(one["sig"], validate=True)) for one in table["signatures"]]
    return table["payloadType"], base64.b64decode(table["payload"], validate=True), signatures


def holds(public, message, signature):
    """Whether PyNaCl alone takes the signature."""
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    try:
        VerifyKey(public).verify(message, signature)
    except BadSignatureError:
        return False
    return True


def flipped(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def encoding_for_dsse(kind, payload):
    return b" ".join([b"DSSEv1", str(len(kind)).encode(), kind.encode(), str(len(payload)).encode(), payload])


def statement_in(envelope, pair=PAIR):
    """The statement in an envelope whose one signature is the pair's."""
    kind, payload, signatures = opened(envelope)
    assert kind == "application/vnd.in-toto+json"
    ((name, signature),) = signatures
    assert name == key_id(pair.public)
    assert holds(pair.public, encoding_for_dsse(kind, payload), signature)
    assert not holds(pair.public, encoding_for_dsse(kind, payload + b" "), signature)
    return json.loads(payload)


# DSSE


def test_dsse_is_the_canonical_form_under_the_receipts_own_signatures(record):
    kind, payload, signatures = opened(export.dsse(signed(record, PAIR, OTHER)))
    assert (kind, payload) == ("application/vnd.kinetic.receipt+cbor", canonical_bytes(record))
    assert [name for name, _ in signatures] == [key_id(PAIR.public), key_id(OTHER.public)]
    for pair, (_, signature) in zip((PAIR, OTHER), signatures, strict=True):
        assert holds(pair.public, encoding_for_dsse(kind, payload), signature)
        assert not holds(pair.public, encoding_for_dsse(kind, flipped(payload)), signature)


def test_dsse_says_what_another_reader_takes_and_nothing_else():
    dsse = pytest.importorskip("securesystemslib.dsse", reason=NEEDS_DSSE)
    signer = pytest.importorskip("securesystemslib.signer", reason=NEEDS_DSSE)
    pytest.importorskip("cryptography", reason=NEEDS_DSSE)
    errors = pytest.importorskip("securesystemslib.exceptions", reason=NEEDS_DSSE)

    def key_of(pair):
        return signer.SSlibKey(key_id(pair.public), "ed25519", "ed25519", {"public": pair.public.hex()})

    receipt = signed(full_sample(), PAIR, OTHER)
    for envelope in (export.dsse(receipt), export.intoto(receipt, PAIR)):
        assert list(dsse.Envelope.from_dict(json.loads(envelope)).verify([key_of(PAIR)], 1)) == [key_id(PAIR.public)]
        for field, value in (("payload", "AAAA"), ("payloadType", "text/plain")):
            forged = dsse.Envelope.from_dict(json.loads(envelope) | {field: value})
            with pytest.raises(errors.VerificationError):
                forged.verify([key_of(PAIR)], 1)
    both = dsse.Envelope.from_dict(json.loads(export.dsse(receipt)))
    assert len(both.verify([key_of(PAIR), key_of(OTHER)], 2)) == 2


# in-toto


def test_a_statement_is_about_the_text_and_holds_the_whole_receipt(record):
    receipt = signed(record, OTHER)
    statement = statement_in(export.intoto(receipt, PAIR))
    assert list(statement) == ["_type", "subject", "predicateType", "predicate"]
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    digest = hashlib.sha256(record["text"].encode()).hexdigest()
    assert statement["subject"] == [{"name": "answer.txt", "digest": {"sha256": digest}}]
    predicate = statement["predicate"]
    assert (predicate["receiptId"], predicate["questionId"]) == (receipt_id(record), question_id(record))
    file = {name: predicate[name] for name in ("receipt", "signatures")}
    assert read_receipt(json.dumps(file).encode()) == receipt, "the two fields are a receipt file"


def test_a_statement_names_model_files_and_adapters_by_both_digests():
    predicate = statement_in(export.intoto(Receipt(full_sample(), []), PAIR))["predicate"]
    digests = {"sha256": "cd" * 32, "blake3": "ab" * 32}
    assert predicate["resolvedDependencies"] == [
        {"name": "tiny.gguf", "digest": digests},
        {"name": "lora.gguf", "digest": digests},
    ]


def test_one_receipt_gives_one_statement_however_it_is_spelled():
    spelled = dict(reversed(changed(sample(), "sampling.temperature", "0.80").items()))
    assert receipt_id(spelled) == receipt_id(sample())
    assert export.intoto(Receipt(spelled, []), PAIR) == export.intoto(Receipt(sample(), []), PAIR)


def test_another_reader_takes_the_statements(record):
    protobuf = pytest.importorskip("google.protobuf.json_format", reason=NEEDS_INTOTO)
    messages = pytest.importorskip("in_toto_attestation.v1.statement_pb2", reason=NEEDS_INTOTO)
    statements = pytest.importorskip("in_toto_attestation.v1.statement", reason=NEEDS_INTOTO)
    for envelope in (export.intoto(Receipt(record, []), PAIR), export.summary(record, made(), PAIR)):
        message = protobuf.Parse(opened(envelope)[1], messages.Statement())
        statements.Statement.copy_from_pb(message).validate()
        assert message.subject[0].digest["sha256"] == hashlib.sha256(record["text"].encode()).hexdigest()


def test_type_uris_are_uris_in_lower_case():
    from urllib.parse import urlsplit

    for uri in (export.PREDICATE_TYPE, export.POLICY, export.receipt_uri(sample()), export.question_uri(sample())):
        assert urlsplit(uri).scheme == "pkg" and uri == uri.lower() and " " not in uri


# COSE


def parts(message):
    """Protected header as bytes and as a map, payload, signature of a COSE_Sign1."""
    assert message[:2] == b"\xd2\x84", "tag 18, an array of four"
    value = cbor2.loads(message)
    assert value.tag == 18
    protected, unprotected, payload, signature = value.value
    assert dict(unprotected) == {}
    return protected, cbor2.loads(protected), payload, signature


def test_cose_follows_rfc_9052_and_rfc_9943(record):
    message = export.cose(record, PAIR)
    protected, header, payload, signature = parts(message)
    assert payload == canonical_bytes(record)
    assert list(header) == [1, 3, 4, 15] and header[1] == -8, "EdDSA; labels in order"
    assert header[3] == "application/vnd.kinetic.receipt+cbor" and header[4].hex() == key_id(PAIR.public)
    assert header[15] == {1: export.did_key(PAIR.public), 2: export.receipt_uri(record)}
    # Sig_structure, byte by byte: array(4), text(10), and byte strings with their own lengths.
    structure = b"\x84\x6aSignature1" + cbor2.dumps(protected) + b"\x40" + cbor2.dumps(payload)
    assert holds(PAIR.public, structure, signature)
    for forged in (flipped(structure), structure.replace(b"Signature1", b"Signature2"), payload):
        assert not holds(PAIR.public, forged, signature)


def test_cose_is_deterministic_and_takes_a_named_issuer():
    message = export.cose(sample(), PAIR, "https://example.org/lab")
    assert message == export.cose(sample(), PAIR, "https://example.org/lab") != export.cose(sample(), PAIR)
    assert parts(message)[1][15][1] == "https://example.org/lab"


def test_cose_under_another_implementation_of_ed25519():
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519", reason=NEEDS_DSSE)
    protected, _, payload, signature = parts(export.cose(sample(), PAIR))
    structure = cbor2.dumps(["Signature1", protected, b"", payload])
    ed25519.Ed25519PublicKey.from_public_bytes(PAIR.public).verify(signature, structure)


def test_did_key_is_that_of_the_methods_own_example():
    public = bytes.fromhex("3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29")
    assert key_pair(bytes(32)).public == public
    assert export.did_key(public) == "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"


def test_no_signature_passes_for_one_of_another_format():
    """One key signs a receipt and all its exports; none of these is good for another."""
    record = sample()
    receipt = signed(record, PAIR)
    own = base64.b64decode(receipt.signatures[0]["signature"])
    protected, _, payload, of_cose = parts(export.cose(record, PAIR))
    kind, statement, ((_, of_intoto),) = opened(export.intoto(receipt, PAIR))
    messages = [
        encoding_for_dsse("application/vnd.kinetic.receipt+cbor", payload),
        cbor2.dumps(["Signature1", protected, b"", payload]),
        encoding_for_dsse(kind, statement),
    ]
    table = [[holds(PAIR.public, message, one) for message in messages] for one in (own, of_cose, of_intoto)]
    assert table == [[True, False, False], [False, True, False], [False, False, True]]


@pytest.mark.parametrize("write", [export.cose, lambda record, pair: export.intoto(Receipt(record, []), pair)])
def test_a_pair_that_is_none_signs_nothing(write):
    with pytest.raises(SignatureProblem) as caught:
        write(sample(), KeyPair(SEED, OTHER.public))
    assert caught.value.name == "KEY_MISMATCH"


# SLSA verification summary


def made(code=0, name="IDENTICAL", **changes):
    verdict = Verdict(code, name, "as the rerun found", checked=4, method="replay", signature="unsigned")
    verdict = verdict._replace(**{key: value for key, value in changes.items() if key in Verdict._fields})
    others = {key: value for key, value in changes.items() if key not in Verdict._fields}
    return export.Verification(verdict, "ef" * 32, "2026-03-14T15:09:26Z", "9.8.7", **others)


def test_a_summary_has_every_field_that_slsa_asks_for():
    statement = statement_in(export.summary(sample(), made(), PAIR))
    assert statement["predicateType"] == "https://slsa.dev/verification_summary/v1"
    predicate = statement["predicate"]
    verdict = predicate.pop(export.NAMESPACE + "#verdict/v1")
    assert predicate == {
        "verifier": {"id": export.NAMESPACE, "version": {"kinetic": "9.8.7"}},
        "timeVerified": "2026-03-14T15:09:26Z",
        "resourceUri": export.question_uri(sample()),
        "policy": {"uri": export.POLICY},
        "inputAttestations": [{"uri": export.receipt_uri(sample()), "digest": {"sha256": "ef" * 32}}],
        "verificationResult": "PASSED",
        "verifiedLevels": ["KINETIC_RERUN_IDENTICAL"],
    }
    assert (verdict["name"], verdict["method"], verdict["tokensChecked"]) == ("IDENTICAL", "replay", 4)


@pytest.mark.parametrize(
    ("changes", "result", "level"),
    [
        ({}, "PASSED", "KINETIC_RERUN_IDENTICAL"),
        ({"is_prefix": True}, "PASSED", "KINETIC_RERUN_IDENTICAL_PREFIX"),
        ({"code": 10, "name": "DIFFERS"}, "FAILED", "FAILED"),
        ({"code": 10, "name": "LOGITS_DIFFER"}, "FAILED", "FAILED"),
        ({"code": 10, "name": "DIFFERS", "is_prefix": True}, "FAILED", "FAILED"),
    ],
)
def test_a_summary_says_what_the_verdict_says(changes, result, level):
    predicate = statement_in(export.summary(sample(), made(**changes), PAIR))["predicate"]
    assert (predicate["verificationResult"], predicate["verifiedLevels"]) == (result, [level])
    assert not level.startswith("SLSA_"), "levels of SLSA's own are not ours to give"


@pytest.mark.parametrize("code", [1, 3, 5, 11, 12, 13, 14])
def test_no_verdict_no_summary(code):
    with pytest.raises(Unverifiable) as caught:
        export.summary(sample(), made(code, "WHY"), PAIR)
    assert caught.value.name == "WHY"


def test_a_summary_says_whom_the_receipt_had_to_be_signed_by():
    policy = statement_in(export.summary(sample(), made(pinned=["12" * 32]), PAIR))["predicate"]["policy"]
    assert policy == {"uri": export.POLICY, "annotations": {"pinnedKeys": ["12" * 32]}}
    policy = statement_in(export.summary(sample(), made(trust_sha256="34" * 32), PAIR))["predicate"]["policy"]
    assert policy == {"uri": export.POLICY, "digest": {"sha256": "34" * 32}}


# Rewriting


@pytest.mark.parametrize("form", ["json", "cbor"])
def test_a_signature_more_changes_nothing_else(record, form):
    receipt = read_receipt(encoded(with_signature(with_signature(Receipt(record, []), PAIR), OTHER), form))
    assert receipt == signed(record, PAIR, OTHER)
    assert form_of(encoded(receipt, form)) == form


def test_forms_are_told_by_the_first_byte():
    receipt = Receipt(sample(), [])
    assert form_of(to_cbor(receipt)) == "cbor" and form_of(b"\n " + to_json(receipt).encode()) == "json"


@pytest.mark.parametrize(
    ("receipt", "pair", "name"),
    [
        (signed(sample(), PAIR), PAIR, "REPEATED_KEY"),
        (signed(sample(), OTHER, PAIR), PAIR, "REPEATED_KEY"),
        (Receipt(sample(), [sign_record(full_sample(), SEED)]), OTHER, "BAD_SIGNATURE"),
        (Receipt(sample(), []), KeyPair(SEED, OTHER.public), "KEY_MISMATCH"),
        (Receipt(changed(sample(), "output.digest", "00" * 32), []), PAIR, "OUTPUT_DIGEST"),
    ],
)
def test_what_is_not_signed(receipt, pair, name):
    with pytest.raises(KtcError) as caught:
        with_signature(receipt, pair)
    assert caught.value.name == name
