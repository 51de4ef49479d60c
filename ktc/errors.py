"""Every exception that ``ktc`` and ``receipts`` raise on purpose, and its exit code.

    KtcError                 1   anything below
    +-- FileProblem          3   a file that cannot be read or written
    +-- Malformed           11   a file that breaks its format
    +-- SignatureProblem    12   a signature that does not hold, or a key that may not sign
    +-- Unverifiable        13   a check that cannot be made here
    +-- LimitExceeded       14   a file that asks for more than ``ktc.limits`` allows

A message is one sentence that says what is wrong and where. ``name`` is a
stable identifier in capitals that tests and scripts may rely on.
"""


class KtcError(Exception):
    """Base class; ``exit_code`` is the process's, ``name`` the reason's."""

    exit_code = 1

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class FileProblem(KtcError):
    exit_code = 3


class Malformed(KtcError):
    exit_code = 11


class SignatureProblem(KtcError):
    exit_code = 12


class Unverifiable(KtcError):
    exit_code = 13


class LimitExceeded(KtcError):
    exit_code = 14
