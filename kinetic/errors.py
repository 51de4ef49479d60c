"""Every exception that Kinetic raises on purpose, and the exit code each one gets.

    KineticError                    1   anything below, or an internal fault
    +-- UsageError                  2   flags or arguments that make no sense
    +-- FileProblem                 3   missing, unreadable or unwritable file
    +-- NetworkError                4   a pull that could not reach or trust its source
    +-- OutOfMemory                 5   the model or its context does not fit
    +-- ContextOverflow             6   the prompt is longer than the context
    +-- NonFinite                   8   the model produced a number that is not finite
    +-- LicenseNotAccepted          9   the model's terms must be accepted first
    +-- Differs                    10   a file that is not what it was said to be made as
    +-- Malformed                  11   a file that breaks its format
    |   +-- MalformedGguf
    |   +-- UnsupportedModel            well formed, but not runnable by this build
    |   +-- TemplateError
    +-- SignatureProblem           12   a key that may not sign, or a signature that does not hold
    +-- Unverifiable               13   a check that cannot be made here
    +-- LimitExceeded              14   an input that asks for too much

Verdict codes (0 identical, 10 differs, 11 malformed, 12 signature, 13
unverifiable, 14 limit) are shared with ``receipts``; 130 is an interrupt, 141
a reader of the output that went away, 143 the end that somebody asked for.
A message is one sentence: what is wrong, where, and what to do about it.
"""


class KineticError(Exception):
    """Base class. ``name`` is a stable identifier that tests and scripts may rely on."""

    exit_code = 1
    http_status = 500

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name or type(self).__name__


class UsageError(KineticError):
    exit_code = 2
    http_status = 400


class FileProblem(KineticError):
    exit_code = 3
    http_status = 404


class NetworkError(KineticError):
    exit_code = 4
    http_status = 502


class OutOfMemory(KineticError):
    exit_code = 5
    http_status = 507


class ContextOverflow(KineticError):
    exit_code = 6
    http_status = 400


class NonFinite(KineticError):
    exit_code = 8


class LicenseNotAccepted(KineticError):
    exit_code = 9
    http_status = 403


class Differs(KineticError):
    """Says where first: in a key, or ``at`` a byte of a tensor; -1 is its name, type or shape."""

    exit_code = 10
    http_status = 422

    def __init__(self, message: str, *, name: str = "DIFFERS", key: str = "", tensor: str = "", at: int = -1) -> None:
        super().__init__(message, name=name)
        self.key, self.tensor, self.at = key, tensor, at


class Malformed(KineticError):
    exit_code = 11
    http_status = 400


class MalformedGguf(Malformed):
    """``name`` is the reason in capitals, for example ``BAD_MAGIC``."""


class UnsupportedModel(Malformed):
    """A well-formed model that this build cannot run; ``name`` says why."""


class TemplateError(Malformed):
    """A chat template that failed, or that refused the conversation."""


class SignatureProblem(KineticError):
    exit_code = 12
    http_status = 403


class Unverifiable(KineticError):
    exit_code = 13
    http_status = 422


class LimitExceeded(KineticError):
    exit_code = 14
    http_status = 413


_BY_CODE: dict[int, type[KineticError]] = {
    3: FileProblem,
    11: Malformed,
    12: SignatureProblem,
    13: Unverifiable,
    14: LimitExceeded,
}


def of_code(exit_code: int, message: str, name: str) -> KineticError:
    """The error that stands for one of ``ktc`` or ``receipts``, which share these codes and know nothing of ours."""
    return _BY_CODE.get(exit_code, KineticError)(message, name=name)


INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143
"""128 plus the signal, as shells say it: SIGINT, SIGPIPE, SIGTERM."""
