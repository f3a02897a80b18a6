"""Finds secrets by what stands before them: ``API_KEY=…``, ``--pass …``, ``Cookie: …``, ``<token>…``, ``-----BEGIN …``.

Names are matched first, each once, and a value is looked for only after a secret's name, so that the time is linear in
the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

#: Names of secrets: words that match anywhere in a name, and short ones that must be a whole word.
_WHOLE_WORDS: Final = r"(?:^|[_.-])(?:KEYS?|PASS|CREDS?|PSK|JWT|PIN|OTP|SAS|DSN|SALT|SIGNATURE)"
_SECRET_NAME: Final = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|PASSCODE|CREDENTIAL|AUTH|PRIVATE|COOKIE|BEARER|API[_-]?KEY|ACCESS[_-]?KEY"
    rf"|{_WHOLE_WORDS}(?:[_.-]|$)|PWD(?:[_.-]|$)|(?-i:[a-z](?:Key|Pass|Pwd)(?![a-z]))",
    re.IGNORECASE,
)
#: As above, at the end of a name; required in prose: ``pass.reorder_data: …`` is not about a password.
_SECRET_AT_END: Final = re.compile(
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|AUTH|COOKIE|BEARER|API[_-]?KEY|ACCESS[_-]?KEY|PWD)S?$"
    rf"|{_WHOLE_WORDS}$|(?-i:[a-z](?:Key|Pass)$)",
    re.IGNORECASE,
)
#: Names that are of nothing else, so that a colon after them is enough also among names of kernels and ranges.
_CERTAIN: Final = re.compile(r"PASSW|PASSPHRASE|PWD$|SECRET$|API[_-]?KEY$|(?:ACCESS|AUTH)[_-]?TOKEN$", re.IGNORECASE)
#: Variables with such a word in their name, whose value is a folder.
_FOLDERS: Final = frozenset(("PWD", "OLDPWD"))
_FOLDER: Final = re.compile(r"[/~.\\]|[A-Za-z]:[\\/]|\$")

#: Headers whose value is a scheme and a secret, or several.
_HEADER: Final = re.compile(r"(?:Proxy-)?Authorization|(?:Set-)?Cookie2?", re.IGNORECASE)
_HEADER_VALUE: Final = re.compile(
    r"[\"']?(?:(?P<scheme>Bearer|Basic|Digest|Negotiate|Token|ApiKey|OAuth|NTLM|Hawk|JWT|AWS4-HMAC-SHA256)[ \t]+)?"
    r"(?(scheme)|(?:[^\s\"'=;,]+[ \t]+(?=\S))?)(?P<value>(?:[^\s,;]*+[,;][ \t]*)*+[^\s,;]*+)",
    re.IGNORECASE,
)

#: A name, its separator, and its value: quoted, or up to a blank. Quotes may be escaped, and signs percent-encoded.
_NAME: Final = re.compile(r"[\w.-]++")
_SIGN: Final = r"(?:=>|={1,3}|:=|:(?!:)|%(?:25)*3[AD])"
_TYPE: Final = r"""(?::[ \t]?[A-Za-z][\w.\[\]|]{0,40}[ \t]?(?==[ \t]?\w?["']))?"""
_ASSIGNED: Final = re.compile(
    rf"""(?:\\*["'`]|%(?:25)*2[27]|&quot;)?\]?[ \t]{{0,40}}{_TYPE}{_SIGN}[ \t]{{0,40}}[(\[{{]?"""
    r"""(?:[bfru]{1,2}(?=["']))?|["'],[ \t]?(?=["'])|[ \t]{1,9}""",
    re.IGNORECASE,
)
_VALUE: Final = re.compile(
    r"""(?P<quote>\"{3}|'{3}|\\*["'`]|%(?:25)*2[27]|&quot;)(?P<quoted>(?:(?!(?P=quote))(?:\\.|[^\n]))*+)|[^\s\0"'`]++"""
)

#: The end of the first name in a mapping, which is no value: ``"signature": {"x": …}``.
_KEY_ENDS: Final = re.compile(r"""\\*["']\s*:""")

#: A secret in an element of XML, and the password in ``curl -u USER:PASSWORD``.
_ELEMENT: Final = re.compile(
    r"(?:<|&lt;|\\u003c)(?P<name>[\w.:-]{1,80})[^<>&\n]{0,200}?(?:>|&gt;|\\u003e)(?:<!\[CDATA\[)?"
    r"(?P<value>[^<>\n]{1,4096}?)(?:\]\]>)?(?:<|&lt;|\\u003c)\\?/"
)
_USER: Final = re.compile(
    r"(?<![\w-])(?:-u(?:[ \t]+|(?<=curl -u)|(?<=wget -u))|--(?:proxy-)?user[ \t=]+)\\*[\"']?"
    r"[^\s:\"'/\\]{1,64}+:(?P<value>[^\s\"'\\]++)",
    re.IGNORECASE,
)
_USER_OPTIONS: Final = frozenset(("-u", "-U", "--user", "--proxy-user"))

#: Private keys in PEM and of PGP: up to their end, or without one as far as lines of base64 go, with headers before
#: them and a shorter line behind. Lines may have a prefix, quotes, and escapes in place of line ends.
_BEGIN: Final = r"-{4,5} ?BEGIN(?: |\+|%20)[A-Z0-9 +%]{0,40}PRIVATE(?: |\+|%20)KEY(?:(?: |\+|%20)BLOCK)? ?-{4,5}"
_RUN: Final = r"[A-Za-z0-9+/]{16,}+={0,2}(?![\w.(-])"
PEM: Final = re.compile(
    rf"{_BEGIN}(?:(?:(?!{_BEGIN})[\s\S]){{0,65536}}?{_BEGIN.replace('BEGIN', 'END')}"
    rf"|(?:\s*\n[^\n]{{0,100}}?[A-Z][\w-]{{1,20}}: [^\n]*|\s*\n(?=\s*\n))*+"
    rf"(?:[^\n]{{0,100}}?(?:\n[^\n]{{0,100}}?)?{_RUN}"
    rf"|(?:[^\n]{{0,100}}\n){{0,5}}?[^\n]{{0,100}}?{_BEGIN.replace('BEGIN', '(?:BEGIN|END)')})*"
    r"(?:[^\n]{0,9}?(?:\n[^\n]{0,100}?[^\w\s][ \t]*|\n[ \t]*|\\+n)[A-Za-z0-9+/]{1,63}={0,2}"
    r"(?=[^\w\n]{0,9}(?:\n|\Z|\\+n)))?)"
)
OPENED: Final = re.compile(_BEGIN)
CLOSED: Final = re.compile(_BEGIN.replace("BEGIN", "END"))
#: Longest private key, in characters with all prefixes of its lines.
LONGEST_KEY: Final = 1 << 16

#: Quick check: a text without any of these has no such name.
_HINT: Final = re.compile(
    r"token|secret|pass|credential|auth|private|cookie|bearer|basic|key|pwd|cred|psk|jwt|pin|otp|sas|dsn|salt|signature|-u",
    re.IGNORECASE,
)

#: Schemes that precede a secret instead of a name.
_SCHEMES: Final = frozenset(("bearer", "basic", "digest", "negotiate"))

#: Values that are not secrets: numbers, switches, variables, calls, placeholders.
_HARMLESS: Final = re.compile(
    r"[-+]?[\d.]+(?:e[-+]?\d+|[kmg]?b?)|true|false|none|null|nil|yes|no|on|off|auto|\[secret\]|\[removed\]"
    r"|\$\{[A-Z_]+\}|(?-i:\$[A-Z_]+)|[A-Z_.]+[(\[][^()]*\)?\W{0,3}",
    re.IGNORECASE,
)

#: The end of an unquoted value: where the next name begins, or a sentence or bracket ends.
_FURTHER: Final = re.compile(r"(?:[,;&]|%(?:25)*26|%(?:25)*3B|\\+[nr])[\w.-]+(?:[=:]|%(?:25)*3D)|</|%(?:25)*2[27]")
_ENDS: Final = ",;)]}&>"

#: Shortest value in prose, after a colon or a scheme: ``key: the`` is a sentence.
_SHORTEST: Final = 6


def is_secret(name: str) -> bool:
    """Whether a variable or option of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def is_argument(option: object, value: object) -> bool:
    """Whether `value` is the secret that the option before it in a command line is given."""
    if not (isinstance(option, str) and isinstance(value, str) and option.startswith("-")) or "=" in option:
        return False
    return (is_secret(option) and not value.startswith("-")) or (option in _USER_OPTIONS and ":" in value)


def values(text: str, *, prose: bool = True) -> list[tuple[int, int]]:
    """Spans of secrets in a text: start and end of each, in order, without quotes.

    Without `prose` what a colon gives a name is looked at for certain names alone: names of kernels have colons.
    """
    if _HINT.search(text) is None:
        return []
    spans = [found.span() for found in PEM.finditer(text)]
    spans += [found.span("value") for found in _ELEMENT.finditer(text) if is_secret(found["name"])]
    if "-u" in text or "-U" in text:
        spans += [found.span("value") for found in _USER.finditer(text)]
    spans += _assigned(text, prose=prose)
    apart: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if apart and begin < apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        elif not _HARMLESS.fullmatch(text, begin, end):
            apart.append((begin, end))
    return apart


def _assigned(text: str, *, prose: bool) -> Iterator[tuple[int, int]]:
    """Spans of values that follow a secret's name."""
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
    if between is None:
        return None
    sign, option = between[0].strip("\\\"'`] \t"), name[0].startswith("-")
    if sign.startswith(":") and not sign.startswith(":=") and _HEADER.fullmatch(name[0]):
        return _header(text, name, text.index(":", name.end()) + 1)
    told = scheme or sign == ":"
    certain = prose or _CERTAIN.search(name[0]) is not None
    value = _VALUE.match(text, between.end()) if certain or not told else None
    if value is None or (between[0].endswith("{") and _KEY_ENDS.match(text, value.end())):
        return None
    begin, end = _bare(value)
    said, quoted = text[begin:end], value["quote"] is not None
    if said.lower() in _SCHEMES and (further := _VALUE.match(text, end + 1)):
        return _bare(further)  # AUTH=Bearer …
    compared = sign.startswith("==") and not quoted
    given = scheme or (option and (quoted or not said.startswith("-"))) if sign in ("", ",") else not compared
    named = scheme or _SECRET_AT_END.search(name[0]) is not None
    short = told and not quoted and not (named and len(said) >= _SHORTEST)
    folder = name[0].upper() in _FOLDERS and _FOLDER.match(said)
    return None if not given or not said or short or folder or _HARMLESS.fullmatch(said) else (begin, end)


def _header(text: str, name: re.Match[str], at: int) -> tuple[int, int] | None:
    """The span of a header's value without its scheme: to the end of the quoted text that it is in."""
    at += len(text[at : at + 40]) - len(text[at : at + 40].lstrip(" \t"))
    quote = text[name.start() - 1 : name.start()]
    end = text.find(quote, at) if quote in ("'", '"') else -1
    if quote in ("'", '"') and name.end() < len(text) and text[name.end()] in "\"'\\":  # "Authorization": "…"
        quoted = _VALUE.match(text, at)
        return _bare(quoted) if quoted else None
    found = _HEADER_VALUE.match(text, at, end if end >= 0 else len(text))
    if found is None:
        return None
    begin = found.start("value") if found["scheme"] else at
    return begin, max(begin, begin + len(text[begin : found.end()].rstrip("\\\"'")))


def _bare(value: re.Match[str]) -> tuple[int, int]:
    """The span of a value without its quotes; an unquoted one ends where the next name begins, or a sentence."""
    if value["quote"] is not None:
        return value.span("quoted")
    further = _FURTHER.search(value[0])
    told = re.sub(r"(?:\\+[nr])+\Z", "", value[0][: further.start()] if further else value[0])
    return value.start(), value.start() + len(told.rstrip(_ENDS) or told)
