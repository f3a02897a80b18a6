"""Names that identify a machine or its user, collected from a report."""

from __future__ import annotations

import getpass
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.redact.rules import ALLOWED, words
from kanalyze.redact.rules.assigned import OPENED, is_secret, values

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Names that identify nobody, and variables of the environment that name a host, a user or a folder.
_GENERIC: Final = words(ALLOWED["names"]["generic"])
_HOST_VARIABLES: Final = words(ALLOWED["names"]["hosts"])
_USER_VARIABLES: Final = words(ALLOWED["names"]["users"])
_FOLDER_VARIABLES: Final = words(ALLOWED["names"]["folders"])
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


@dataclass
class Names:
    """Identifying texts, collected before anything is written.

    Attributes:
        hosts: Host names.
        users: User names.
        folders: Absolute folders: home, working folder, the report's own.
        secrets: Texts to remove wherever they occur: values of secret variables, and the user's own list.
        keep: The user's list of texts to keep, which are none of these.
        source: Whether what stands in lines of the program stays.
    """

    hosts: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    secrets: set[str] = field(default_factory=set)
    keep: frozenset[str] = frozenset()
    source: bool = False

    def host(self, name: object) -> None:
        """Add a host name; of ``node7.example.org`` also the first label."""
        whole = str(name or "").strip()
        for part in (whole, whole.partition(".")[0]):
            if self._tells(part):
                self.hosts.add(part)

    def user(self, name: object) -> None:
        """Add a user name or e-mail address."""
        for part in re.split(r"[@\\]", str(name or "").strip()):
            if self._tells(part):
                self.users.add(part)

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
        for found in _HOSTS_IN_TEXT.findall(text):
            self.host("".join(found))
        for begin, end in values(text):
            for value in _KEY_LINE.findall(text, begin, end) if OPENED.match(text, begin) else (text[begin:end],):
                self.assigned(value)

    def here(self) -> None:
        """Add this machine and its user, as most reports are redacted where they were recorded."""
        with suppress(OSError):
            self.host(socket.gethostname())
        with suppress(OSError, KeyError, ImportError):
            self.user(getpass.getuser())
        with suppress(RuntimeError):
            self.folder(Path.home())
        for name in (*_USER_VARIABLES, *_HOST_VARIABLES):
            self.variable(name, os.environ.get(name, ""))

    def _tells(self, name: str) -> bool:
        """Whether `name` is distinctive enough to identify somebody."""
        kept = {text.lower() for text in self.keep}
        low = name.lower()
        return len(name) >= _SHORTEST and low not in _GENERIC and low not in kept and not re.fullmatch(r"[\d.:]+", name)


def asked(keep: Iterable[str], remove: Iterable[str], *, source: bool = False) -> Names:
    """The names of this machine, with the user's own lists."""
    names = Names(keep=frozenset(keep), source=source)
    for text in remove:
        names.secret(text)
    names.here()
    return names
