"""What each word and each stable name means, and what to do about it."""

from __future__ import annotations

from receipts.report.rows import NOT_RERUN

SAYS = {
    "IDENTICAL": "the rerun gives the same tokens",
    NOT_RERUN: "nothing wrong was found, and the answer was not rerun",
    "UNVERIFIABLE": "cannot be judged here",
    "UNREADABLE": "the file cannot be read",
    "FAULT": "the program failed; this is no verdict",
    "LIMIT": "asks for more than the limits allow",
    "DIFFERS": "the model draws another token",
    "MALFORMED": "breaks the format, or contradicts itself",
    "SIGNATURE": "a signature does not hold, is missing, or is by a key that may not sign",
}

_ADVICE = {
    NOT_RERUN: "Its answer was left out of this run. Rerun it to learn whether it is the model's.",
    "UNVERIFIABLE": "This says nothing about the answer. Verify it where profile, model and opening are at hand.",
    "UNREADABLE": "Check that the file is there and that it may be read.",
    "FAULT": "Verify the receipt again. If it fails again, report the fault with the receipt.",
    "LIMIT": "Limits are fixed, so that no file costs more than it is worth. Do not rely on what was not checked.",
    "DIFFERS": (
        "The receipt was edited, or made by another model, by other settings than it names, or by an engine whose "
        "arithmetic is not the profile's. The gap tells how near the two best tokens were."
    ),
    "MALFORMED": "The file was edited or damaged, or its issuer is broken. Do not rely on anything in it.",
    "SIGNATURE": "Do not rely on the receipt as the word of the signer you expected.",
}

_NAMES = {
    "BAD_SIGNATURE": "A signature is not of this receipt by the key beside it: one of the two was changed.",
    "CHALLENGE_SEED": "The seed is not the one that the challenge gives.",
    "CHALLENGE_SETTING": "A setting that has no effect is not left plain: the seed could be chosen with it.",
    "EXPIRED_KEY": "The signer's key was not trusted at that time.",
    "MODEL": "The model file that the receipt names is not here, or the one opened is another.",
    "OPENING": "The opening is not the one of this receipt.",
    "OUTPUT_DIGEST": "The digest in the receipt is not that of its output tokens.",
    "PROFILE": "The receipt was made under another numerics profile than this engine computes.",
    "PROMPT_DIGEST": "The digest in the receipt is not that of its prompt tokens.",
    "RERUN_COST": "A rerun would take more tokens than the limit allows.",
    "REVOKED_KEY": "The signer's key is revoked.",
    "STOP_REASON": "The receipt's stop reason is at odds with its tokens.",
    "TEXT": "The receipt's text is not what its output tokens give.",
    "THRESHOLD": "Fewer trusted keys have signed than are asked for.",
    "UNSIGNED": "A signature is asked for, and there is none.",
    "UNTRUSTED_KEY": "The receipt is signed by a key that is not trusted here.",
    "VERSION": "The receipt is of a version that this program does not know.",
    "WITHHELD": "The prompt is withheld, and its opening was not given.",
    "WRONG_SCOPE": "The signer's key is trusted for something else than receipts.",
}


def brief(word: str, name: str) -> str:
    """One sentence: what was found."""
    says = SAYS[word]
    return _NAMES.get(name) or f"{says[0].upper()}{says[1:]}."


def advice(word: str) -> str:
    """What follows from it, and what to do."""
    return _ADVICE.get(word, "")
