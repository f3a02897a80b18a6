"""Finds secrets by the name of their variable or option: ``API_KEY=…``, ``--pass …``, ``token: …``.

Names are matched first, each once, and a value is looked for only after a secret's name, so that the time is linear in
the text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Names of secrets: words that match anywhere in a name, and short ones that must be a whole word.
_SECRET_NAME: Final = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|PRIVATE|COOKIE|BEARER|API[_-]?KEY|ACCESS[_-]?KEY"
    r"|(?:^|[_.-])(?:KEYS?|PASS|PWD|CREDS?|PSK|JWT|PIN|OTP|SAS|DSN|SALT|SIGNATURE)(?:[_.-]|$)|(?-i:[a-z]Key(?![a-z]))",
    re.IGNORECASE,
)
#: As above, at the end of a name; required in prose: ``pass.reorder_data: …`` is not about a password.
_SECRET_AT_END: Final = re.compile(
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|AUTHORIZATION|COOKIE|BEARER|API[_-]?KEY|ACCESS[_-]?KEY)S?$"
    r"|(?:^|[_.-])(?:KEYS?|PASS|PWD|CREDS?|PSK|JWT|PIN|OTP|SAS|DSN|SALT|SIGNATURE)$|(?-i:[a-z]Key$)",
    re.IGNORECASE,
)
#: Variables with such a word in their name, whose value is a folder.
_NO_SECRET: Final = frozenset(("PWD", "OLDPWD"))

#: A name, its separator, and its value: quoted, or up to a blank.
_NAME: Final = re.compile(r"[\w.-]++")
_ASSIGNED: Final = re.compile(r"""["']?[ \t]{0,9}(?:=|:(?!:))[ \t]{0,9}|[ \t]{1,9}""")
_VALUE: Final = re.compile(r""""(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?|[^\s"']++""")

#: Quick check: a text without any of these has no such name.
_HINT: Final = re.compile(
    r"token|secret|pass|credential|auth|private|cookie|bearer|basic|key|pwd|cred|psk|jwt|pin|otp|sas|dsn|salt|signature",
    re.IGNORECASE,
)

#: Schemes that precede a secret instead of a name.
_SCHEMES: Final = frozenset(("bearer", "basic", "digest", "negotiate"))

#: Values that are not secrets: numbers, switches, placeholders.
_HARMLESS: Final = re.compile(
    r"[-+]?[\d.]+(?:e[-+]?\d+)?|true|false|none|null|nil|yes|no|on|off|auto|\[secret\]|\[removed\]", re.IGNORECASE
)
_ENDS: Final = ",;)]}&"

#: Shortest value in prose, after a colon or a scheme: ``key: the`` is a sentence.
_SHORTEST: Final = 6


def is_secret(name: str) -> bool:
    """Whether a variable or option of this name holds a secret."""
    return name.upper() not in _NO_SECRET and _SECRET_NAME.search(name) is not None


def values(text: str, *, prose: bool = True) -> Iterator[tuple[int, int]]:
    """Spans of secret values in a text: start and end of each, in order, without quotes.

    Without `prose` only those of options and assignments: names of kernels have colons.
    """
    if _HINT.search(text) is None:
        return
    at = 0
    while found := _NAME.search(text, at):
        at = found.end()
        scheme = prose and found[0].lower() in _SCHEMES
        if not scheme and not is_secret(found[0]):
            continue
        span = _value_after(text, found, scheme=scheme, prose=prose)
        if span is not None:
            yield span
            at = max(span[1], at)


def _value_after(text: str, name: re.Match[str], *, scheme: bool, prose: bool) -> tuple[int, int] | None:
    between = _ASSIGNED.match(text, name.end())
    value = between and _VALUE.match(text, between.end())
    if between is None or value is None:
        return None
    spaced, quoted = not between[0].strip("\"' \t"), value[0][0] in "\"'"
    begin, end = _bare(value)
    said = text[begin:end]
    if said.lower() in _SCHEMES and (further := _VALUE.match(text, end + 1)):
        return _bare(further)  # Authorization: Bearer …
    option = name[0].startswith("-") and (quoted or not said.startswith("-"))
    told = scheme or ":" in between[0]
    named = scheme or _SECRET_AT_END.search(name[0]) is not None
    short = told and not (prose and (quoted or (named and len(said) >= _SHORTEST)))
    if (spaced and not (scheme or option)) or not said or short or _HARMLESS.fullmatch(said):
        return None
    return begin, end


def _bare(value: re.Match[str]) -> tuple[int, int]:
    """The span of a value without its quotes; an unquoted one ends where the next name begins."""
    begin, end = value.span()
    if value[0][0] not in "\"'":
        return begin, begin + len(_cut(value[0]))
    return begin + 1, end - (end - begin > 1 and value[0][-1] == value[0][0])


def _cut(value: str) -> str:
    """An unquoted value, up to the next name, or to the end of the sentence or bracket."""
    further = re.search(r"[,;&][\w.-]+[=:]", value)
    value = value[: further.start()] if further else value
    return value.rstrip(_ENDS) or value
