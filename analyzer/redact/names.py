"""Names of a machine and its user, and secrets: what is looked for in a report, and where it is learned from.

Names are collected from a report before anything is written. Secrets are found by what stands before them:
``API_KEY=…``, ``--pass …``, ``Cookie: …``, ``<token>…``, ``-----BEGIN …``.
"""

import getpass
import os
import re
import socket
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final


def words(text: str) -> frozenset[str]:
    """The words of `text`, as lists of words are written."""
    return frozenset(text.split())


def by_word(lists: dict[str, str]) -> dict[str, Any]:
    """The name of the list that each word stands in, word by word in order."""
    return {word: name for name, text in lists.items() for word in text.split()}


#: What may stay of each kind of report, and the names that are looked for.
ALLOWED: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("allowed.toml").read_text(encoding="utf-8"))

#: Names that identify nobody, and variables of the environment that name a host, a user or a folder.
_GENERIC, _HOST_VARIABLES, _USER_VARIABLES, _FOLDER_VARIABLES = (
    words(ALLOWED["names"][names]) for names in ("generic", "hosts", "users", "folders")
)
_SHORTEST: Final = 3

#: Shorter values of secret variables are removed only where they are assigned: elsewhere they may be a word or number.
_SECRET_AT_LEAST: Final = 8

#: A value that may be a common word or an identifier, and a line of a private key.
_WORD: Final = re.compile(r"[A-Za-z_.]+")
_KEY_LINE: Final = re.compile(r"[A-Za-z0-9+/]{32,}")

#: Positions of a user name in a path, and of a host name in a file name or log.
_USERS_IN_TEXT: Final = re.compile(
    r"(?:/home/|/Users/|\\Users\\|/export/home/|/var/home/|/scratch/users/|torchinductor_)([^/\\\s\0-\x1f\"'<>|:;,()\[\]{}$*?=]+)"
)
_HOSTS_IN_TEXT: Final = re.compile(
    r"^([\w.-]+):\d+:\d+ \[\d+\] NCCL |(?:^|[/\\])([\w.-]+?)_\d+\.\d+\.pt\.trace\.json"
    r"|(?<![\w.+-])[\w.+-]++@((?:[\w-]+\.)*[\w-]+):[/~]",
    re.MULTILINE,
)
#: A variable and its value in a dumped environment; separated by NUL, semicolon or line end.
_VARIABLE: Final = re.compile(r"(?:^|[\0;\n])([A-Za-z_]\w*)=\"?([^\0;\n\"]*)")

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
_PEM: Final = re.compile(
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

#: Shortest value in prose, after a colon or a scheme: ``key: the`` is a sentence.
_SHORTEST_VALUE: Final = 6


@dataclass
class Names:
    """Identifying texts, collected before anything is written."""

    hosts: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)  # absolute ones: home, working folder, the report's own
    #: To remove wherever they occur: values of secret variables, and the user's own list.
    secrets: set[str] = field(default_factory=set)
    keep: frozenset[str] = frozenset()  # the user's list of texts to keep, which are none of these
    source: bool = False  # whether what stands in lines of the program stays

    def host(self, name: object) -> None:
        """Add a host name; of ``node7.example.org`` also the first label."""
        whole = str(name or "").strip()
        self.hosts |= {part for part in (whole, whole.partition(".")[0]) if self._identifies(part)}

    def user(self, name: object) -> None:
        """Add a user name or e-mail address."""
        self.users |= {part for part in re.split(r"[@\\]", str(name or "").strip()) if self._identifies(part)}

    def folder(self, path: object) -> None:
        """Add a folder; its name may contain a user name."""
        text = str(path or "").rstrip("/\\")
        if re.match(r"/[^/]|[A-Za-z]:[\\/]", text):
            self.folders.add(text)
            self.text(text)

    def secret(self, text: str) -> None:
        """Add a text to be removed wherever it occurs."""
        if text and text not in self.keep:
            self.secrets.add(text)

    def variable(self, name: str, value: str) -> None:
        """Add an environment variable and its value."""
        if name in _FOLDER_VARIABLES:
            self.folder(value)
        elif is_secret(name):
            self._secret(value)
        elif name in _HOST_VARIABLES:
            self.host(value)
        elif name in _USER_VARIABLES:
            self.user(value)

    def assigned(self, value: str) -> None:
        """Add a value that is given a secret's name, unless it may be a word or an identifier."""
        if not _WORD.fullmatch(value):
            self._secret(value)

    def _secret(self, value: str) -> None:
        """Add a secret value, to be removed wherever it occurs if it is unambiguous."""
        if len(value) >= _SECRET_AT_LEAST and not re.fullmatch(r"[\d.]+|/.*|true|false", value):
            self.secret(value)

    def environment(self, text: str) -> None:
        """Add the variables of a dumped environment, ``A=1;B=2``."""
        for name, value in _VARIABLE.findall(text):
            self.variable(name, value)

    def text(self, text: str) -> None:
        """Add names from recognisable positions in `text`: home folders in paths, hosts in NCCL logs."""
        for name in _USERS_IN_TEXT.findall(text):
            self.user(name)
        for parts in _HOSTS_IN_TEXT.findall(text):
            self.host("".join(parts))
        for begin, end in values(text):
            for value in _KEY_LINE.findall(text, begin, end) if OPENED.match(text, begin) else (text[begin:end],):
                self.assigned(value)

    def _identifies(self, name: str) -> bool:
        common = _GENERIC | {text.lower() for text in self.keep}
        return len(name) >= _SHORTEST and name.lower() not in common and not re.fullmatch(r"[\d.:]+", name)


def asked(keep: Iterable[str], remove: Iterable[str], *, source: bool = False) -> Names:
    """The user's lists, and the names of this machine and its user, as most reports are redacted where recorded."""
    names = Names(keep=frozenset(keep), source=source)
    for text in remove:
        names.secret(text)
    for learn, fact in ((names.host, socket.gethostname), (names.user, getpass.getuser), (names.folder, Path.home)):
        with suppress(OSError, KeyError, ImportError, RuntimeError):
            learn(fact())
    for name in (*_USER_VARIABLES, *_HOST_VARIABLES):
        names.variable(name, os.environ.get(name, ""))
    return names


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

    Names are matched first, each once, and a value is looked for only after a secret's name: the time is linear in the
    text. Without `prose` what a colon gives a name counts for certain names alone: names of kernels have colons.
    """
    if _HINT.search(text) is None:
        return []
    spans = [match.span() for match in _PEM.finditer(text)]
    spans += [match.span("value") for match in _ELEMENT.finditer(text) if is_secret(match["name"])]
    spans += [match.span("value") for match in _USER.finditer(text)] if "-u" in text or "-U" in text else []
    at = 0
    while match := _NAME.search(text, at):
        span, at = _value_after(text, match, prose=prose), match.end()
        if span is not None:
            spans.append(span)
            at = max(span[1], at)
    apart: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if apart and begin < apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        elif not _HARMLESS.fullmatch(text, begin, end):
            apart.append((begin, end))
    return apart


def _value_after(text: str, name: re.Match[str], *, prose: bool) -> tuple[int, int] | None:
    """The span of the value that is given a name, if that is a secret's; None if there is none."""
    scheme = prose and name[0].lower() in _SCHEMES
    between = _ASSIGNED.match(text, name.end()) if scheme or is_secret(name[0]) else None
    if between is None:
        return None
    sign, is_option = between[0].strip("\\\"'`] \t"), name[0].startswith("-")
    if sign.startswith(":") and not sign.startswith(":=") and _HEADER.fullmatch(name[0]):
        return _header(text, name, text.index(":", name.end()) + 1)
    after_colon = scheme or sign == ":"
    value = _VALUE.match(text, between.end()) if prose or not after_colon or _CERTAIN.search(name[0]) else None
    if value is None or (between[0].endswith("{") and _KEY_ENDS.match(text, value.end())):
        return None
    begin, end = _bare(value)
    content, is_quoted = text[begin:end], value["quote"] is not None
    if content.lower() in _SCHEMES and (further := _VALUE.match(text, end + 1)):
        return _bare(further)  # AUTH=Bearer …
    is_given = is_quoted or not sign.startswith("==")
    if sign in ("", ","):
        is_given = scheme or (is_option and (is_quoted or not content.startswith("-")))
    is_named = scheme or _SECRET_AT_END.search(name[0]) is not None
    is_short = after_colon and not is_quoted and not (is_named and len(content) >= _SHORTEST_VALUE)
    is_folder = name[0].upper() in _FOLDERS and _FOLDER.match(content)
    is_secret_value = is_given and content and not (is_short or is_folder or _HARMLESS.fullmatch(content))
    return (begin, end) if is_secret_value else None


def _header(text: str, name: re.Match[str], at: int) -> tuple[int, int] | None:
    """The span of a header's value without its scheme: to the end of the quoted text that it is in."""
    at += len(text[at : at + 40]) - len(text[at : at + 40].lstrip(" \t"))
    quote = text[name.start() - 1 : name.start()]
    end = text.find(quote, at) if quote in ("'", '"') else -1
    if quote in ("'", '"') and name.end() < len(text) and text[name.end()] in "\"'\\":  # "Authorization": "…"
        quoted = _VALUE.match(text, at)
        return _bare(quoted) if quoted else None
    match = _HEADER_VALUE.match(text, at, end if end >= 0 else len(text))
    if match is None:
        return None
    begin = match.start("value") if match["scheme"] else at
    return begin, max(begin, begin + len(text[begin : match.end()].rstrip("\\\"'")))


def _bare(value: re.Match[str]) -> tuple[int, int]:
    """The span of a value without its quotes; an unquoted one ends where the next name begins, or a sentence."""
    if value["quote"] is not None:
        return value.span("quoted")
    # the end of an unquoted value: where the next name begins, or a sentence or bracket ends
    further = re.search(r"(?:[,;&]|%(?:25)*26|%(?:25)*3B|\\+[nr])[\w.-]+(?:[=:]|%(?:25)*3D)|</|%(?:25)*2[27]", value[0])
    text = re.sub(r"(?:\\+[nr])+\Z", "", value[0][: further.start()] if further else value[0])
    return value.start(), value.start() + len(text.rstrip(",;)]}&>") or text)
