"""Steps 4 to 7: values out of range, a question at odds with itself, versions and extensions."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tools.receipt_vectors.build import OK, Case, Expect, changed, plain, record, signed, with_output, without
from tools.receipt_vectors.fields import bad, slug


def cases() -> Iterator[Case]:
    yield from _ranges()
    yield from _words()
    yield from _decimals()
    yield from _tokens()
    yield from _question()
    yield from _versions()
    yield from _extensions()


def _ranges() -> Iterator[Case]:
    base, out, hexes, text = record(), bad("OUT_OF_RANGE"), bad("BAD_HEX"), bad("BAD_TEXT")
    for name, path, value, expect in [
        ("completion-negative", "completion_index", -1, out),
        ("completion-2-32", "completion_index", 2**32, out),
        ("max-tokens", "max_tokens", -2, out),
        ("size-negative", "model.files.0.size", -1, out),
        ("context-negative", "overrides.context", -1, out),
        ("yarn-context-negative", "overrides.yarn_orig_ctx", -4096, out),
        ("digest-capitals", "model.files.0.blake3", "AB" * 32, hexes),
        ("digest-short", "model.files.0.blake3", "ab" * 31, hexes),
        ("digest-long", "model.files.0.blake3", "ab" * 33, hexes),
        ("digest-odd", "model.files.0.sha256", "ab" * 31 + "a", hexes),
        ("digest-prefix", "model.files.0.sha256", "0x" + "cd" * 31, hexes),
        ("digest-named", "model.files.0.sha256", "sha256:" + "cd" * 32, hexes),
        ("digest-spaces", "model.files.0.sha256", "cd " * 21 + "c", hexes),
        ("digest-other-digits", "model.files.0.sha256", "\N{ARABIC-INDIC DIGIT SEVEN}" * 64, hexes),
        ("digest-empty", "model.files.0.sha256", "", hexes),
        ("digest-zero", "bundle", "0", hexes),
        ("name-empty", "model.files.0.name", "", text),
        ("name-slash", "model.files.0.name", "../tiny.gguf", text),
        ("name-backslash", "model.files.0.name", "..\\tiny.gguf", text),
        ("name-nul", "model.files.0.name", "tiny\0.gguf", text),
        ("name-escape", "model.files.0.name", "\x1b[2Jtiny.gguf", text),
        ("name-line", "model.files.0.name", "tiny\ngguf", text),
        ("architecture-empty", "model.architecture", "", text),
        ("architecture-space", "model.architecture", "llama ", text),
        ("claim-control", "claims.device_name", "GPU\x1b]0;verified\x07", text),
        ("clock-line", "clock", "noon\nverified", text),
        ("time-local", "claims.time", "2026-03-14T15:09:26+01:00", bad("TOO_LONG")),
        ("time-date", "claims.time", "2026-03-14", text),
        ("time-digits", "claims.time", "\N{ARABIC-INDIC DIGIT TWO}026-03-14T15:09:2Z", text),
        ("profile-zero", "profile", "kinetic-0", text),
        ("profile-other", "profile", "fastest-1", text),
        ("profile-draft-zero", "profile", "kinetic-1-draft.0", text),
        ("profile-newline", "profile", "kinetic-1\n", text),
        ("certificate-short", "certificate", "00", hexes),
    ]:
        expect = (14, "TOO_LONG", 5) if expect[1] == "TOO_LONG" else expect
        yield Case(f"range-{name}", [84], f"{path} holds what it cannot.", plain(changed(base, path, value)), expect)


def _words() -> Iterator[Case]:
    base, word = record(), bad("UNKNOWN_WORD")
    samplers = base["sampling"]["samplers"]
    for name, path, value, expect in [
        ("rng", "sampling.rng", "mt19937", word),
        ("cache-k", "overrides.cache_type_k", "f64", word),
        ("cache-v", "overrides.cache_type_v", "", word),
        ("scaling", "overrides.rope_scaling", "ntk", word),
        ("stop-reason", "stop.reason", "eos", word),
        ("sampler", "sampling.samplers", [*samplers, "greedy"], (14, "TOO_MANY_ENTRIES", 5)),
        ("sampler-other", "sampling.samplers", ["greedy"], word),
        ("sampler-twice", "sampling.samplers", ["top_k", "top_k"], bad("REPEATED")),
        ("mirostat", "sampling.mirostat", 3, bad("OUT_OF_RANGE")),
        ("breaker-empty", "sampling.dry_sequence_breakers", [""], bad("BAD_TEXT")),
        ("breakers-order", "sampling.dry_sequence_breakers", ["b", "a"], bad("NOT_ASCENDING")),
        ("stop-empty", "stop.strings", [""], bad("BAD_TEXT")),
        ("stops-twice", "stop.strings", ["a", "a"], bad("NOT_ASCENDING")),
        ("end-tokens-order", "stop.end_tokens", [2, 0], bad("NOT_ASCENDING")),
        ("end-tokens-twice", "stop.end_tokens", [0, 0], bad("NOT_ASCENDING")),
        (
            "biases-order",
            "sampling.logit_bias",
            [{"token": 2, "bias": "1"}, {"token": 1, "bias": "1"}],
            bad("NOT_ASCENDING"),
        ),
        (
            "bias-twice",
            "sampling.logit_bias",
            [{"token": 1, "bias": "1"}, {"token": 1, "bias": "2"}],
            bad("NOT_ASCENDING"),
        ),
        ("bias-infinite", "sampling.logit_bias", [{"token": 1, "bias": "inf"}], bad("BAD_DECIMAL")),
        ("bias-infinite-other", "sampling.logit_bias", [{"token": 1, "bias": "-Infinity"}], bad("BAD_DECIMAL")),
        ("commitments-order", "commitments", [{"name": n, "digest": "00" * 32} for n in "ba"], bad("NOT_ASCENDING")),
        ("commitment-name", "commitments", [{"name": "A", "digest": "00" * 32}], bad("BAD_TEXT")),
        ("ext-name", "ext", {"a/b": ""}, bad("BAD_TEXT")),
    ]:
        yield Case(f"word-{name}", [84], f"{path} holds what it cannot.", plain(changed(base, path, value)), expect)


def _decimals() -> Iterator[Case]:
    base, decimal, out = record(), bad("BAD_DECIMAL"), bad("OUT_OF_RANGE")
    tiny = "0." + "0" * 37 + "1"
    for name, setting, value, expect in [
        ("negative", "temperature", "-1", out),
        ("denormal", "temperature", tiny, out),
        ("infinite", "temperature", "Infinity", decimal),
        ("inf", "temperature", "inf", decimal),
        ("overflow", "temperature", "4" + "0" * 38, decimal),
        ("underflow", "temperature", "0." + "0" * 50 + "1", decimal),
        ("nan", "min_p", "NaN", decimal),
        ("negative", "min_p", "-0.1", out),
        ("above-1", "min_p", "1.1", out),
        ("zero", "top_p", "0", out),
        ("above-1", "top_p", "1.01", out),
        ("just-above-1", "top_p", "1.0000002", out),
        ("exponent", "top_p", "9.5e-1", decimal),
        ("plus", "top_p", "+0.95", decimal),
        ("bare-point", "top_p", ".95", decimal),
        ("point-behind", "top_p", "1.", decimal),
        ("comma", "top_p", "0,95", decimal),
        ("leading-zero", "top_p", "00.95", decimal),
        ("space", "top_p", " 0.95", decimal),
        ("newline", "top_p", "0.95\n", decimal),
        ("empty", "top_p", "", decimal),
        ("other-digits", "top_p", "0.\N{ARABIC-INDIC DIGIT NINE}", decimal),
        ("minus-zero", "frequency_penalty", "-0", decimal),
        ("minus-zero-point", "frequency_penalty", "-0.0", decimal),
        ("hex", "frequency_penalty", "0x1p-3", decimal),
        ("zero", "repeat_penalty", "0", out),
        ("denormal", "repeat_penalty", tiny, out),
        ("zero", "typ_p", "0", out),
        ("negative", "xtc_probability", "-0.5", out),
        ("above-1", "xtc_threshold", "2", out),
        ("negative", "dynatemp_range", "-1", out),
        ("negative", "dry_base", "-1", out),
        ("negative", "mirostat_tau", "-1", out),
        ("negative", "top_n_sigma", "-1", out),
    ]:
        what = f"{setting} is {json.dumps(value)}."
        file = plain(changed(base, f"sampling.{setting}", value))
        yield Case(f"decimal-{slug(setting)}-{name}", [93], what, file, expect)
    for name, number in [("negative", -1), ("2-31", 2**31)]:
        file = plain(changed(base, "sampling.top_k", number))
        yield Case(f"top-k-{name}", [93], f"top_k is {number}.", file, out)
    for name, path in [("scale", "overrides.rope_scale"), ("base", "overrides.rope_freq_base")]:
        yield Case(f"decimal-rope-{name}-zero", [93], f"{path} is 0.", plain(changed(base, path, "0")), out)


def _tokens() -> Iterator[Case]:
    base, out = record(), bad("OUT_OF_RANGE")
    vocabulary: Expect = (11, "TOKEN_RANGE", 10)
    for name, path, value, expect in [
        ("prompt-negative", "prompt.tokens", [3, -1, 4], out),
        ("prompt-2-31", "prompt.tokens", [3, 2**31, 4], out),
        ("output-negative", "output.tokens", [1, -2, 3, 0], out),
        ("output-2-31", "output.tokens", [1, 2**31, 3, 0], out),
        ("end-negative", "stop.end_tokens", [-1, 0], out),
        ("bias-negative", "sampling.logit_bias", [{"token": -1, "bias": "1"}], out),
        ("bias-vocabulary", "sampling.logit_bias", [{"token": 8, "bias": "1"}], vocabulary),
        ("end-vocabulary", "stop.end_tokens", [0, 8], vocabulary),
    ]:
        yield Case(
            f"token-{name}", [85], f"{path} holds an id that cannot be.", plain(changed(base, path, value)), expect
        )
    in_prompt, in_output = plain(record(prompt=[3, 8, 4])), plain(with_output(base, [1, 8, 3, 0]))
    yield Case("token-prompt-vocabulary", [85], "A prompt token past the vocabulary.", in_prompt, vocabulary)
    yield Case("token-output-vocabulary", [85], "An output token past the vocabulary.", in_output, vocabulary)
    yield Case(
        "token-prompt-empty", [85], "An empty prompt, digest and all.", plain(record(prompt=[])), (11, "PROMPT", 6)
    )


def _question() -> Iterator[Case]:
    base = record()
    for name, path, value, reason in [
        ("prompt-edited", "prompt.tokens", [3, 1, 5], "PROMPT_DIGEST"),
        ("prompt-longer", "prompt.tokens", [3, 1, 4, 4], "PROMPT_DIGEST"),
        ("prompt-digest", "prompt.digest", "00" * 32, "PROMPT_DIGEST"),
        ("prompt-digest-missing", "prompt.digest", "", "PROMPT_DIGEST"),
        ("no-model", "model.files", [], "NO_MODEL"),
    ]:
        attack = [84] if name == "no-model" else [87]
        yield Case(
            f"question-{name}", attack, f"{path} is changed alone.", plain(changed(base, path, value)), (11, reason, 6)
        )


def _versions() -> Iterator[Case]:
    base = record()
    version: Expect = (13, "VERSION", 4)
    for name, value, expect in [
        ("zero", 0, (11, "OUT_OF_RANGE", 4)),
        ("negative", -1, (11, "OUT_OF_RANGE", 4)),
        ("two", 2, version),
        ("huge", 2**53 - 1, version),
    ]:
        attack = [105] if value < 1 else [90]
        yield Case(
            f"version-{name}", attack, f"The version is {value}.", plain(changed(base, "version", value)), expect
        )
    newer = plain(changed(base, "version", 2) | {"region": "north"})
    yield Case("version-two-more-fields", [90], "A later version with a field of its own.", newer, version)
    fewer = plain(without(changed(base, "version", 0), "parent"))
    yield Case(
        "version-zero-fewer-fields",
        [105],
        "A made-up earlier version with fewer fields.",
        fewer,
        (11, "OUT_OF_RANGE", 4),
    )
    for name, profile in [("draft", "kinetic-1-draft.1"), ("later", "kinetic-2"), ("far", "kinetic-999999999")]:
        file = plain(record(profile=profile))
        yield Case(f"profile-{name}", [90], "Another profile than the engine's.", file, (13, "PROFILE", 10))


def _extensions() -> Iterator[Case]:
    unknown_here: Expect = (13, "CRITICAL", 7)
    needed = record(ext={"a.b": "1"}, crit=["a.b"])
    yield Case("crit-unknown", [105], "An extension that must be understood, and is not.", plain(needed), unknown_here)
    optional = plain(record(ext={"a.b": "1"}))
    yield Case("ext-unknown", [105], "An extension that need not be understood.", optional, OK)
    absent = plain(record(crit=["a.b"]))
    yield Case("crit-absent", [105], "A critical extension that is not there.", absent, (11, "CRITICAL", 6))
    order = plain(record() | {"ext": {"a": "", "b": ""}, "crit": ["b", "a"]})
    yield Case("crit-order", [105], "Critical extensions in falling order.", order, bad("NOT_ASCENDING"))
    removed = plain(needed | {"crit": []}, json.loads(signed(needed))["signatures"])
    yield Case("crit-removed-signed", [105], "A signed receipt without its crit.", removed, (12, "BAD_SIGNATURE", 8))
