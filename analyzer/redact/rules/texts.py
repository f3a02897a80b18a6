"""Applies the redaction rules to a text: what identifies by form alone, and names that were collected.

Analyses depend on names of kernels and ranges, so :meth:`Texts.name` replaces only unambiguous matches.
:meth:`Texts.free` is for all other texts of people and tools.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kanalyze.redact.rules import ALLOWED, words
from kanalyze.redact.rules.assigned import values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kanalyze.redact.rules.names import Names

    Rule = Callable[[str], str]

# What identifies by form alone: addresses, ids, keys, paths.

_OCTET: Final = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"

#: Addresses and ids by kind, with their replacement, in the order of matching.
ADDRESSES: Final = (
    (
        "secrets",
        re.compile(
            r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
            r"|(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,})"
            r"|A[KS]IA[0-9A-Z]{16}|xox[abeoprs]-[\w-]{10,}|AIza[\w-]{30,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{16,}|dckr_pat_[\w-]{16,}"
            # only the first match start of a word is tried: each would scan all that follows
            r"|nvapi-[\w-]{20,}|(?<![\w-])(?>[\w-]*?eyJ)[\w-]{10,}+\.[\w-]{8,}+(?:\.[\w-]*)?"
        ),
        "[secret]",
    ),
    ("e-mail addresses", re.compile(r"(?<![\w.+-])[\w.+-]+@(?:[\w-]+\.)+[A-Za-z]{2,}(?![\w-])"), "[email]"),
    (
        "UUIDs",
        re.compile(
            r"(?<![0-9a-f])(?:(?:GPU|MIG)-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE
        ),
        "[uuid]",
    ),
    (
        "MAC addresses",
        re.compile(r"(?<![\w:-])[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}(?![\w:-])", re.IGNORECASE),
        "[mac]",
    ),
    (
        "PCI addresses",
        re.compile(r"(?<![\w:])(?:[0-9a-f]{4})?[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![\w.])", re.IGNORECASE),
        "[pci]",
    ),
    (
        "IP addresses",
        re.compile(
            r"(?<![\w:.])(?=[0-9a-f:]*::|(?:[0-9a-f]{1,4}:){7})"
            r"(?:fe80|f[cd][0-9a-f]{2}|[23][0-9a-f]{3})(?::{1,2}[0-9a-f]{1,4}){1,7}(?![\w:])",
            re.IGNORECASE,
        ),
        "[ip]",
    ),
    (
        "IP addresses",
        re.compile(
            rf"(?<![\w.])(?<!version )(?!127\.|0\.0\.0\.0|255\.255\.)(?:{_OCTET}\.){{3}}{_OCTET}(?!\w|\.\d|-\d)",
            re.IGNORECASE,
        ),
        "[ip]",
    ),
)

#: Quick check: a text without any of these matches none of ADDRESSES.
ADDRESS_HINT: Final = re.compile(
    r"[@.:]|-[0-9a-fA-F-]|gh[pousr]_|github_|hf_|sk-|A[KS]IA|xox|AIza|npm_|pypi-|dckr|nvapi|glpat|eyJ"
)

URL: Final = re.compile(r"\b[a-z][a-z0-9+.-]{0,30}://[^\s\"'<>)\]},;\\]+", re.IGNORECASE)

#: Public pages that tools link to; every other URL may be of a private network.
PUBLIC_URL: Final = re.compile(
    r"https?://(?:[\w-]+\.)*(?:nvidia\.com|pytorch\.org|python\.org|triton-lang\.org|intel\.com|wikipedia\.org|arxiv\.org)"
    r"(?=[/?#.]|$)|https?://github\.com/(?:pytorch|NVIDIA|triton-lang|openai/triton)\b",
    re.IGNORECASE,
)

_PART: Final = r"[^\s\0-\x1f/\\\"'`<>|:;,*?()\[\]{}]+"

#: A path starts only where no other path continues.
NOT_IN_PATH: Final = r"(?<![\w.~%)\]}\\/<-])"

#: A folder matched in full by PATH and WINDOWS_PATH, and what may follow one that they miss.
PLAIN_FOLDER: Final = re.compile(rf"(?:[A-Za-z]:)?(?:[\\/]{_PART})+")
FURTHER_FOLDERS: Final = rf"(?:(?:[\\/]+{_PART})*[\\/]+|(?![\w.-]))"

#: A path of any system: folder part and last component. A relative one only if it starts with .. or ~.
PATH: Final = re.compile(
    rf"(?:{NOT_IN_PATH}|(?<=-[A-Z]))"
    rf"(?P<lead>~[\w.-]*|\.\.(?:/\.\.)*)?/(?P<folders>(?:{_PART}/+)*)(?P<last>{_PART})?"
)
WINDOWS_PATH: Final = re.compile(rf"(?<!\w)(?:[A-Za-z]:[\\/]+|\\\\)(?P<folders>(?:{_PART}[\\/]+)+)(?P<last>{_PART})?")

#: A quoted path may contain spaces; with options or a second path after it, it is a command.
QUOTED_PATH: Final = re.compile(
    r"(?P<quote>[\"'])(?![^\"'\n]*\s[-/])(?:/|~/|[A-Za-z]:[\\/])[^\"'\n\0]*[\\/](?P<last>[^\"'\n\0/\\]+)(?P=quote)"
)

#: A source line as written by profilers, ``/home/a b/train.py(12): main``, in full.
SOURCE_LINE: Final = re.compile(r"\A(?:/|[A-Za-z]:[\\/]).*[\\/](?P<last>[^/\\]+\(\d+\): .*)\Z", re.DOTALL)

#: Usual root folders. ``/layer1/conv`` has none of them: some frameworks name layers like paths.
ROOTS: Final = words(ALLOWED["names"]["roots"])

#: Suffixes of file names that a range or kernel may be named after.
FILE_NAME: Final = re.compile(
    r"\.(?:pyc?|pyx|ipynb|cuh?|cubin|ptx|c|cc|cpp|cxx|h|hpp|hh|so(?:\.\d+)*|dll|dylib|exe|sh|jsonl?|gz|zip|tar|ya?ml|toml"
    r"|txt|log|csv|parquet|sqlite|nsys-rep|ncu-rep|pt|pth|ckpt|safetensors|bin|onnx|engine|plan|npy|npz|h5|db)$",
    re.IGNORECASE,
)

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


#: Words that names of a GPU's sampled counters and their units are made of, and whole numbers.
_WORDS: Final = (
    "GPC|SYS|GR|SMs?|L2|FE|FP16|Clock|Frequency|Active|Issued?|Instructions?|Tensor|Pipe|Compute|Graphics|CS|VTG|Vertex|Tess"
    "|Geometry|Pixel|Async|Sync|Unallocated|Warps|in|Flight|DRAM|VRAM|Read|Write|Bandwidth|Throughput|NVLink|PCIe|RX|TX"
    "|Requests|Responses|User|Protocol|Data|Avg|per|Cycle|Ratio|MHz|%"
)
_COUNTER: Final = re.compile(rf"(?:{_WORDS})(?:[ /]{{1,3}}\[?(?:{_WORDS})\]?)+")
_WHOLE: Final = re.compile(r"-?\d{1,19}")


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
        self._known: dict[tuple[str, str], tuple[str, Counter[str]]] = {}
        self._counts: Counter[str] = Counter()
        self._roots = ROOTS | {folder.split("/")[1] for folder in names.folders if folder.startswith("/")}
        odd = (folder for folder in names.folders if not PLAIN_FOLDER.fullmatch(folder))
        self._folders = _any_of(odd, NOT_IN_PATH, FURTHER_FOLDERS)
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
        return self._made("name", text, self._name)

    def free(self, text: str) -> str:
        """Redacts free text, such as a log line or a table cell."""
        return self._made("free", text, self._free)

    def path(self, text: str) -> str:
        """Redacts a path to its last component."""
        return self._made("path", text, self._path)

    def module(self, text: str) -> str:
        """Redacts the path of a program, library or source file to its last component and the kind of its folder.

        That it is of the system, of CUDA, or of an installed package tells whose code it is; of torch the file stays.
        """
        return self._made("module", text, self._module)

    def counters(self, text: str) -> str:
        """Reduces the JSON text of a generic event to the sampled counters of a GPU, whole numbers by their names."""
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            told = None
        rows = told.items() if isinstance(told, dict) else ()
        kept = {name: value for name, value in rows if _COUNTER.fullmatch(name) and _WHOLE.fullmatch(str(value))}
        self.removed.add("values of generic events that are no counters of a GPU", len(rows) - len(kept) or not rows)
        return json.dumps(kept) if kept else ""

    def names_and_secrets(self, text: str) -> str:
        """Redacts only names and tokens in `text`, for texts otherwise redacted already."""
        self._counts = Counter()
        for what, pattern, instead in (ADDRESSES[0], *self._named):
            text = self._sub(what, pattern, instead, text)
        self.removed.counts.update(self._counts)
        return text

    def blank(self, what: str, text: str) -> str:
        """Replaces `text` by an empty one, counted as `what`."""
        self.removed.add(what, bool(text))
        return ""

    def _made(self, how: str, text: str, rule: Rule) -> str:
        found = self._known.get((how, text))
        if found is None:
            self._counts = Counter()
            made = text if text in self.names.keep else rule(text)
            found = made, self._counts
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[how, text] = found
        if found[1]:
            self.removed.counts.update(found[1])
        return found[0]

    def _name(self, text: str) -> str:
        text = self._without_secrets(text, prose=False)
        if "/" in text or "\\" in text:
            text = self._sub("URLs", URL, self._url, text)
            text = self._sub("paths", SOURCE_LINE, r"\g<last>", text)
            text = self._without_folders(text)
            text = self._sub("paths", PATH, self._certain_path, text)
            text = self._sub("paths", WINDOWS_PATH, self._last, text)
        return self._identified(text)

    def _free(self, text: str) -> str:
        text = self._without_secrets(text)
        if "/" in text or "\\" in text:
            text = self._sub("URLs", URL, self._url, text)
            text = self._sub("paths", QUOTED_PATH, r"\g<quote>\g<last>\g<quote>", text)
            text = self._without_folders(text)
            text = self._sub("paths", PATH, self._any_path, text)
            text = self._sub("paths", WINDOWS_PATH, self._last, text)
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
        last = "[folder]" if text in self.names.folders else last
        if last != text:
            self._counts["paths"] += 1
        return self._identified(last)

    def _module(self, text: str) -> str:
        found = next(filter(None, (kind.search(text) for kind in _KINDS_OF_FOLDERS)), None)
        if found is None or text in self.names.folders:
            return self._path(text)
        told = f"{found['kind']}/{_SEPARATORS.split(text)[-1]}"
        if told != text:
            self._counts["paths"] += 1
        return self._identified(told)

    def _identified(self, text: str) -> str:
        rules = (*ADDRESSES, *self._named) if ADDRESS_HINT.search(text) else self._named
        for what, pattern, instead in rules:
            text = self._sub(what, pattern, instead, text)
        return text

    def _without_folders(self, text: str) -> str:
        """Removes known folders with spaces in their names, which no pattern separates from prose."""
        if self._folders is None:
            return text
        return self._sub("paths", self._folders, lambda found: "" if found[0][-1:] in "\\/" else "[folder]", text)

    def _sub(
        self, what: str, pattern: re.Pattern[str], instead: str | Callable[[re.Match[str]], str], text: str
    ) -> str:
        def replaced(found: re.Match[str]) -> str:
            made = found.expand(instead) if isinstance(instead, str) else instead(found)
            if made != found[0]:
                self._counts[what] += 1
            return made

        return pattern.sub(replaced, text)

    def _url(self, found: re.Match[str]) -> str:
        whole = found[0]
        if whole.lower().startswith("file:"):
            return re.sub(r"^file://[^/]*", "", whole, flags=re.IGNORECASE)
        return whole if PUBLIC_URL.match(whole) and "@" not in whole else "[url]"

    def _any_path(self, found: re.Match[str]) -> str:
        return self._last(found) if found["lead"] or found["folders"] else found[0]

    def _certain_path(self, found: re.Match[str]) -> str:
        root = found["folders"].partition("/")[0]
        certain = found["lead"] or root in self._roots or (found["folders"] and FILE_NAME.search(found["last"] or ""))
        return self._last(found) if certain else found[0]

    def _last(self, found: re.Match[str]) -> str:
        if found[0].rstrip("\\/") in self.names.folders:
            return "[folder]"
        parts = [part for part in _SEPARATORS.split(found["folders"] or "") if part]
        return found["last"] or (parts[-1] if parts else found[0][-1:])


#: A name matches as a whole word, or between underscores.
_NOT_AFTER: Final = r"(?<![A-Za-z0-9])"
_NOT_BEFORE: Final = r"(?![A-Za-z0-9])"


def _any_of(texts: Iterable[str], before: str, after: str) -> re.Pattern[str] | None:
    """A pattern of all `texts`, longest first; None if there are none."""
    listed = sorted((re.escape(text) for text in texts if text), key=len, reverse=True)
    return re.compile(f"{before}(?:{'|'.join(listed)}){after}", re.IGNORECASE) if listed else None
