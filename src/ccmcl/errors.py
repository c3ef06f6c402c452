"""What can go wrong that a user can put right, as sentences."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something given to ccmcl cannot be used; the message says what, what was expected and what to do."""


class StorageError(OSError):
    """A file could not be written; what was there before is untouched."""


def nearest(word: str, known: Iterable[str]) -> str:
    """List the known names, the ones most like ``word`` first, for the end of an error message.

    >>> nearest("minst", ["digits", "mnist", "svhn"])
    "did you mean 'mnist'? (known: digits, mnist, svhn)"
    >>> nearest("xyz", ["digits", "mnist"])
    'known: digits, mnist'
    """
    names = list(known)
    close = difflib.get_close_matches(word.lower(), names, n=2, cutoff=0.5)
    listing = f"known: {', '.join(names)}"
    return f"did you mean {' or '.join(map(repr, close))}? ({listing})" if close else listing


def printable(text: str) -> str:
    """Make text from outside safe to show: what could steer a terminal becomes a replacement character.

    >>> printable("a" + chr(27) + "b") == "a" + chr(0xFFFD) + "b"
    True
    """
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
