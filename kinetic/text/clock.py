"""The clock a chat template sees: a recorded value, so that an answer can be repeated on another day.

Names of days and months are English whatever the machine's language is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kinetic.errors import UsageError

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_DAYS_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


@dataclass(frozen=True)
class Clock:
    """A moment of civil time, with the offset as it was written ("" = not said, "Z", "+0200")."""

    year: int
    month: int
    day: int
    hour: int = 0
    minute: int = 0
    second: int = 0
    microsecond: int = 0
    offset: str = ""

    @classmethod
    def parse(cls, text: str) -> Clock:
        """Read ``YYYY-MM-DD[THH:MM[:SS[.ffffff]]][Z|+HH:MM]`` (ISO 8601), or raise UsageError BAD_TEMPLATE_TIME."""
        match = _ISO.fullmatch(text)
        if match:
            *numbers, fraction, offset = match.groups(default="")
            year, month, day, hour, minute, second = (int(number or 0) for number in numbers)
            moment = cls(year, month, day, hour, minute, second, int(fraction.ljust(6, "0")), offset.replace(":", ""))
            if moment._exists():
                return moment
        raise UsageError(f"{text!r} is not a time such as 2026-03-14T15:09:26Z", name="BAD_TEMPLATE_TIME")

    def _exists(self) -> bool:
        days = (31, 29 if _is_leap(self.year) else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
        if not (self.year >= 1 and 1 <= self.month <= 12 and 1 <= self.day <= days[self.month - 1]):
            return False
        return self.hour < 24 and self.minute < 60 and self.second < 60

    @property
    def day_of_year(self) -> int:
        return _DAYS_BEFORE[self.month - 1] + self.day + (self.month > 2 and _is_leap(self.year))

    @property
    def weekday(self) -> int:
        """0 = Monday. 1 January of year 1 was a Monday in the calendar reckoned back."""
        past = self.year - 1
        return (past * 365 + past // 4 - past // 100 + past // 400 + self.day_of_year - 1) % 7

    def format(self, pattern: str) -> str:
        """Like C's strftime in the "C" locale, with glibc's ``-`` and ``_`` flags. ValueError for what it lacks."""
        return re.sub(r"%([-_]?)(.?)", lambda match: self._directive(match[2], match[1]), pattern, flags=re.DOTALL)

    def _directive(self, letter: str, flag: str) -> str:
        if letter in _COMPOSED:
            return self.format(_COMPOSED[letter])
        number = self._numbers().get(letter)
        if number is not None:
            value, width, pad = number
            return str(value).rjust(width, {"": pad, "_": " "}[flag]) if flag != "-" else str(value)
        texts = self._texts()
        if letter not in texts:
            raise ValueError(f"strftime directive %{letter} is not supported")
        return texts[letter]

    def _numbers(self) -> dict[str, tuple[int, int, str]]:
        """Letter -> (value, width, padding)."""
        hour12 = self.hour % 12 or 12
        return {
            "Y": (self.year, 4, "0"),
            "C": (self.year // 100, 2, "0"),
            "y": (self.year % 100, 2, "0"),
            "m": (self.month, 2, "0"),
            "d": (self.day, 2, "0"),
            "e": (self.day, 2, " "),
            "H": (self.hour, 2, "0"),
            "k": (self.hour, 2, " "),
            "I": (hour12, 2, "0"),
            "l": (hour12, 2, " "),
            "M": (self.minute, 2, "0"),
            "S": (self.second, 2, "0"),
            "f": (self.microsecond, 6, "0"),
            "j": (self.day_of_year, 3, "0"),
            "u": (self.weekday + 1, 1, "0"),
            "w": ((self.weekday + 1) % 7, 1, "0"),
            "U": ((self.day_of_year + 6 - (self.weekday + 1) % 7) // 7, 2, "0"),
            "W": ((self.day_of_year + 6 - self.weekday) // 7, 2, "0"),
        }

    def _texts(self) -> dict[str, str]:
        month, weekday = MONTHS[self.month - 1], WEEKDAYS[self.weekday]
        return {
            "B": month,
            "b": month[:3],
            "h": month[:3],
            "A": weekday,
            "a": weekday[:3],
            "p": "AM" if self.hour < 12 else "PM",
            "P": "am" if self.hour < 12 else "pm",
            "z": "+0000" if self.offset == "Z" else self.offset,
            "Z": "UTC" if self.offset in ("Z", "+0000") else self.offset,
            "n": "\n",
            "t": "\t",
            "%": "%",
        }


_COMPOSED = {
    "D": "%m/%d/%y",
    "F": "%Y-%m-%d",
    "T": "%H:%M:%S",
    "R": "%H:%M",
    "r": "%I:%M:%S %p",
    "c": "%a %b %e %H:%M:%S %Y",
    "x": "%m/%d/%y",
    "X": "%H:%M:%S",
}
