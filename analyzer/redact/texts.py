"""What is taken out of a text, and what takes its place: names of a machine and its user, and what identifies by form.

Names are collected from a report before anything is written. Analyses depend on names of kernels and ranges, so
:meth:`Texts.name` replaces only unambiguous matches; :meth:`Texts.free` is for all other texts of people and tools.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kanalyze.redact.assigned import OPENED, is_secret, values

if TYPE_CHECKING:
    #: What takes the place of a match; a kind of what identifies, how it is found, and what takes its place.
    _Instead = str | Callable[[re.Match[str]], str]
    _Rule = tuple[str, re.Pattern[str], _Instead]


def words(text: str) -> frozenset[str]:
    """The words of `text`, as lists of words are written."""
    return frozenset(text.split())


#: What may stay of each kind of report, and the names that are looked for.
ALLOWED: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("allowed.toml").read_text(encoding="utf-8"))

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

_HEX: Final = "[0-9a-f]"
_OCTET: Final = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"

_TOKENS: Final = (
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,})|A[KS]IA[0-9A-Z]{16}|xox[abeoprs]-[\w-]{10,}"
    r"|AIza[\w-]{30,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{16,}|dckr_pat_[\w-]{16,}|nvapi-[\w-]{20,}"
    # only the first match start of a word is tried: each would scan all that follows
    r"|(?<![\w-])(?>[\w-]*?eyJ)[\w-]{10,}+\.[\w-]{8,}+(?:\.[\w-]*)?"
)
_IP6: Final = (
    rf"(?i)(?<![\w:.])(?=[0-9a-f:]*::|(?:{_HEX}{{1,4}}:){{7}})"
    rf"(?:fe80|f[cd]{_HEX}{{2}}|[23]{_HEX}{{3}})(?::{{1,2}}{_HEX}{{1,4}}){{1,7}}(?![\w:])"
)
_IP4: Final = rf"(?i)(?<![\w.])(?<!version )(?!127\.|0\.0\.0\.0|255\.255\.)(?:{_OCTET}\.){{3}}{_OCTET}(?!\w|\.\d|-\d)"
_UUID: Final = rf"(?i)(?<!{_HEX})(?:(?:GPU|MIG)-)?{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}(?!{_HEX})"
_MAC: Final = rf"(?i)(?<![\w:-]){_HEX}{{2}}([:-])(?:{_HEX}{{2}}\1){{4}}{_HEX}{{2}}(?![\w:-])"
_PCI: Final = rf"(?i)(?<![\w:])(?:{_HEX}{{4}})?{_HEX}{{4}}:{_HEX}{{2}}:{_HEX}{{2}}\.[0-7](?![\w.])"

#: What identifies by form alone, by kind, with its replacement, in the order of matching.
ADDRESSES: Final = (
    ("secrets", re.compile(_TOKENS), "[secret]"),
    ("e-mail addresses", re.compile(r"(?<![\w.+-])[\w.+-]+@(?:[\w-]+\.)+[A-Za-z]{2,}(?![\w-])"), "[email]"),
    ("UUIDs", re.compile(_UUID), "[uuid]"),
    ("MAC addresses", re.compile(_MAC), "[mac]"),
    ("PCI addresses", re.compile(_PCI), "[pci]"),
    ("IP addresses", re.compile(_IP6), "[ip]"),
    ("IP addresses", re.compile(_IP4), "[ip]"),
)

#: Quick check: a text without any of these matches none of ADDRESSES.
_ADDRESS_HINT: Final = re.compile(
    r"[@.:]|-[0-9a-fA-F-]|gh[pousr]_|github_|hf_|sk-|A[KS]IA|xox|AIza|npm_|pypi-|dckr|nvapi|glpat|eyJ"
)

URL: Final = re.compile(r"\b[a-z][a-z0-9+.-]{0,30}://[^\s\"'<>)\]},;\\]+", re.IGNORECASE)

#: Public pages that tools link to; every other URL may be of a private network.
_PUBLIC_URL: Final = re.compile(
    rf"https?://(?:[\w-]+\.)*(?:{'|'.join(map(re.escape, ALLOWED['urls']['sites'].split()))})(?=[/?#.]|$)"
    rf"|https?://(?:{'|'.join(map(re.escape, ALLOWED['urls']['pages'].split()))})\b",
    re.IGNORECASE,
)

_PART: Final = r"[^\s\0-\x1f/\\\"'`<>|:;,*?()\[\]{}]+"

#: A path starts only where no other path continues.
_NOT_IN_PATH: Final = r"(?<![\w.~%)\]}\\/<-])"

#: A folder matched in full by PATH and WINDOWS_PATH, and what may follow one that they miss.
_PLAIN_FOLDER: Final = re.compile(rf"(?:[A-Za-z]:)?(?:[\\/]{_PART})+")
_FURTHER_FOLDERS: Final = rf"(?:(?:[\\/]+{_PART})*[\\/]+|(?![\w.-]))"

#: A path of any system: folder part and last component. A relative one only if it starts with .. or ~.
PATH: Final = re.compile(
    rf"(?:{_NOT_IN_PATH}|(?<=-[A-Z]))"
    rf"(?P<lead>~[\w.-]*|\.\.(?:/\.\.)*)?/(?P<folders>(?:{_PART}/+)*)(?P<last>{_PART})?"
)
WINDOWS_PATH: Final = re.compile(rf"(?<!\w)(?:[A-Za-z]:[\\/]+|\\\\)(?P<folders>(?:{_PART}[\\/]+)+)(?P<last>{_PART})?")

#: A quoted path may contain spaces; with options or a second path after it, it is a command.
_QUOTED_PATH: Final = re.compile(
    r"(?P<quote>[\"'])(?![^\"'\n]*\s[-/])(?:/|~/|[A-Za-z]:[\\/])[^\"'\n\0]*[\\/](?P<last>[^\"'\n\0/\\]+)(?P=quote)"
)

#: A source line as written by profilers, ``/home/a b/train.py(12): main``, in full.
_SOURCE_LINE: Final = re.compile(r"\A(?:/|[A-Za-z]:[\\/]).*[\\/](?P<last>[^/\\]+\(\d+\): .*)\Z", re.DOTALL)

#: Usual root folders. ``/layer1/conv`` has none of them: some frameworks name layers like paths.
ROOTS: Final = words(ALLOWED["names"]["roots"])

#: Suffixes of file names that a range or kernel may be named after.
_FILE_NAME: Final = re.compile(
    r"\.(?:pyc?|pyx|ipynb|cuh?|cubin|ptx|c|cc|cpp|cxx|h|hpp|hh|so(?:\.\d+)*|dll|dylib|exe|sh|jsonl?|gz|zip|tar|ya?ml|toml"
    r"|txt|log|csv|parquet|sqlite|nsys-rep|ncu-rep|pt|pth|ckpt|safetensors|bin|onnx|engine|plan|npy|npz|h5|db)$",
    re.IGNORECASE,
)

#: A name matches as a whole word, or between underscores.
_NOT_AFTER: Final = r"(?<![A-Za-z0-9])"
_NOT_BEFORE: Final = r"(?![A-Za-z0-9])"

#: Size of the cache of redacted texts: reports repeat theirs.
_REMEMBERED: Final = 100_000

_SEPARATORS: Final = re.compile(r"[\\/]+")

#: Folders of modules that every machine has: of installed packages (of torch with its own folders), Python, the system,
#: CUDA and ROCm.
_KINDS_OF_FOLDERS: Final = tuple(
    map(
        re.compile,
        (
            r"(?P<kind>/(?:site|dist)-packages(?=/torch/)(?:/\w+)+)(?=/[^/]+\Z)",
            r"(?P<kind>/(?:site|dist)-packages)/",
            r"(?P<kind>/lib/python3\.\d+)/",
            r"\A(?P<kind>/(?:usr/)?lib(?:32|64|exec)?)/",
            r"\A(?P<kind>/usr/local/(?:cuda|nvidia)|/opt/(?:nvidia|rocm))\b",
        ),
    )
)

#: Names of a GPU's sampled counters and their units, and whole numbers.
_COUNTER_WORD: Final = f"(?:{'|'.join(map(re.escape, ALLOWED['counters']['words'].split()))})"
_COUNTER: Final = re.compile(rf"{_COUNTER_WORD}(?:[ /]{{1,3}}\[?{_COUNTER_WORD}\]?)+")
_WHOLE: Final = re.compile(r"-?\d{1,19}")


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
        self.hosts |= {part for part in (whole, whole.partition(".")[0]) if self._tells(part)}

    def user(self, name: object) -> None:
        """Add a user name or e-mail address."""
        self.users |= {part for part in re.split(r"[@\\]", str(name or "").strip()) if self._tells(part)}

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

    def _tells(self, name: str) -> bool:
        """Whether `name` is distinctive enough to identify somebody."""
        common = _GENERIC | {text.lower() for text in self.keep}
        return len(name) >= _SHORTEST and name.lower() not in common and not re.fullmatch(r"[\d.:]+", name)


def asked(keep: Iterable[str], remove: Iterable[str], *, source: bool = False) -> Names:
    """The user's lists, and the names of this machine and its user, as most reports are redacted where recorded."""
    names = Names(keep=frozenset(keep), source=source)
    for text in remove:
        names.secret(text)
    with suppress(OSError):
        names.host(socket.gethostname())
    with suppress(OSError, KeyError, ImportError):
        names.user(getpass.getuser())
    with suppress(RuntimeError):
        names.folder(Path.home())
    for name in (*_USER_VARIABLES, *_HOST_VARIABLES):
        names.variable(name, os.environ.get(name, ""))
    return names


@dataclass
class Removed:
    """The tally of one redaction.

    Attributes:
        counts: Removed or replaced places by kind, such as ``paths``: 12.
        left_out: Files of a folder that are not in the copy, with reasons.
        notes: Further notes for the user.
    """

    counts: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, count: int = 1) -> None:
        """Count `count` more places of the kind `what`."""
        if count:
            self.counts[what] += count


class Texts:
    """Redaction rules for texts, with the identifying names of one report."""

    def __init__(self, names: Names, removed: Removed) -> None:
        """Redact `names` and patterns; count replacements in `removed`."""
        self.names = names
        self.removed = removed
        self.sought = sorted(names.hosts | names.users | names.secrets)
        self._known: dict[tuple[Callable[[str], str], str], tuple[str, Counter[str]]] = {}
        self._counts: Counter[str] = Counter()
        self._roots = ROOTS | {folder.split("/")[1] for folder in names.folders if folder.startswith("/")}
        odd = (folder for folder in names.folders if not _PLAIN_FOLDER.fullmatch(folder))
        self._folders = _any_of(odd, _NOT_IN_PATH, _FURTHER_FOLDERS)
        self._named = [
            (what, pattern, instead)
            for what, pattern, instead in (
                ("texts that were asked for", _any_of(names.secrets, "", ""), "[removed]"),
                ("host names", _any_of(names.hosts, _NOT_AFTER, _NOT_BEFORE), "[host]"),
                ("user names", _any_of(names.users, _NOT_AFTER, _NOT_BEFORE), "[user]"),
            )
            if pattern is not None
        ]

    def name(self, text: str) -> str:
        """Redacts the name of a kernel, call, range or thread: only unambiguous matches."""
        return self._made(self._name, text)

    def free(self, text: str) -> str:
        """Redacts free text, such as a log line or a table cell."""
        return self._made(self._free, text)

    def path(self, text: str) -> str:
        """Redacts a path to its last component."""
        return self._made(self._path, text)

    def module(self, text: str) -> str:
        """Redacts the path of a program, library or source file to its last component and the kind of its folder.

        That it is of the system, of CUDA, or of an installed package tells whose code it is; of torch the file stays.
        """
        return self._made(self._module, text)

    def counters(self, text: str) -> str:
        """Reduces the JSON text of a generic event to the sampled counters of a GPU, whole numbers by their names."""
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            event = None
        rows = event.items() if isinstance(event, dict) else ()
        kept = {name: value for name, value in rows if _COUNTER.fullmatch(name) and _WHOLE.fullmatch(str(value))}
        self.removed.add("values of generic events that are no counters of a GPU", len(rows) - len(kept) or not rows)
        return json.dumps(kept) if kept else ""

    def names_and_secrets(self, text: str) -> str:
        """Redacts only names and tokens in `text`, for texts otherwise redacted already."""
        self._counts = Counter()
        text = self._subs((ADDRESSES[0], *self._named), text)
        self.removed.counts.update(self._counts)
        return text

    def blank(self, what: str, text: str) -> str:
        """Replaces `text` by an empty one, counted as `what`."""
        self.removed.add(what, bool(text))
        return ""

    def _made(self, rule: Callable[[str], str], text: str) -> str:
        known = self._known.get((rule, text))
        if known is None:
            self._counts = Counter()
            known = text if text in self.names.keep else rule(text), self._counts
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[rule, text] = known
        made, counts = known
        if counts:
            self.removed.counts.update(counts)
        return made

    def _name(self, text: str) -> str:
        return self._replaced(text, _SOURCE_LINE, r"\g<last>", self._certain_path, prose=False)

    def _free(self, text: str) -> str:
        return self._replaced(text, _QUOTED_PATH, r"\g<quote>\g<last>\g<quote>", self._any_path, prose=True)

    def _replaced(
        self, text: str, whole: re.Pattern[str], last: str, path: Callable[[re.Match[str]], str], *, prose: bool
    ) -> str:
        """Redacts a text, in which `whole` paths have their `last` part, and others what `path` gives."""
        text = self._without_secrets(text, prose=prose)
        if "/" in text or "\\" in text:
            rules: list[_Rule] = [("URLs", URL, self._url), ("paths", whole, last)]
            if self._folders is not None:  # known folders with spaces, which no pattern separates from prose
                rules.append(("paths", self._folders, lambda found: "" if found[0][-1:] in "\\/" else "[folder]"))
            text = self._subs([*rules, ("paths", PATH, path), ("paths", WINDOWS_PATH, self._last)], text)
        return self._identified(text)

    def _without_secrets(self, text: str, *, prose: bool = True) -> str:
        """Removes the values of secrets assigned in `text`."""
        parts, at = [], 0
        for begin, end in values(text, prose=prose):
            parts += [text[at:begin], "[secret]", "\n" * text.count("\n", begin, end)]  # numbers of lines stay
            self._counts["secrets"] += 1
            at = end
        return "".join([*parts, text[at:]])

    def _path(self, text: str) -> str:
        text = self._without_secrets(text, prose=False)
        parts = [part for part in _SEPARATORS.split(text) if part]
        last = parts[-1] if parts and _SEPARATORS.search(text) else text
        return self._shortened(text, "[folder]" if text in self.names.folders else last)

    def _module(self, text: str) -> str:
        found = next(filter(None, (kind.search(text) for kind in _KINDS_OF_FOLDERS)), None)
        if found is None or text in self.names.folders:
            return self._path(text)
        return self._shortened(text, f"{found['kind']}/{_SEPARATORS.split(text)[-1]}")

    def _shortened(self, text: str, made: str) -> str:
        if made != text:
            self._counts["paths"] += 1
        return self._identified(made)

    def _identified(self, text: str) -> str:
        return self._subs((*ADDRESSES, *self._named) if _ADDRESS_HINT.search(text) else self._named, text)

    def _subs(self, rules: Iterable[_Rule], text: str) -> str:
        """Replaces what each rule finds, one after the other, and counts it."""
        for what, pattern, instead in rules:

            def replaced(found: re.Match[str], what: str = what, instead: _Instead = instead) -> str:
                made = found.expand(instead) if isinstance(instead, str) else instead(found)
                if made != found[0]:
                    self._counts[what] += 1
                return made

            text = pattern.sub(replaced, text)
        return text

    def _url(self, found: re.Match[str]) -> str:
        whole = found[0]
        if whole.lower().startswith("file:"):
            return re.sub(r"^file://[^/]*", "", whole, flags=re.IGNORECASE)
        return whole if _PUBLIC_URL.match(whole) and "@" not in whole else "[url]"

    def _any_path(self, found: re.Match[str]) -> str:
        return self._last(found) if found["lead"] or found["folders"] else found[0]

    def _certain_path(self, found: re.Match[str]) -> str:
        root = found["folders"].partition("/")[0]
        certain = found["lead"] or root in self._roots or (found["folders"] and _FILE_NAME.search(found["last"] or ""))
        return self._last(found) if certain else found[0]

    def _last(self, found: re.Match[str]) -> str:
        if found[0].rstrip("\\/") in self.names.folders:
            return "[folder]"
        parts = [part for part in _SEPARATORS.split(found["folders"] or "") if part]
        return found["last"] or (parts[-1] if parts else found[0][-1:])


def _any_of(texts: Iterable[str], before: str, after: str) -> re.Pattern[str] | None:
    """A pattern of all `texts`, longest first; None if there are none."""
    listed = sorted((re.escape(text) for text in texts if text), key=len, reverse=True)
    return re.compile(f"{before}(?:{'|'.join(listed)}){after}", re.IGNORECASE) if listed else None
