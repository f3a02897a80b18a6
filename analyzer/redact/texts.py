"""What is taken out of a text, and what takes its place: names of a machine and its user, and what identifies by form.

Analyses depend on names of kernels and ranges, so :meth:`Texts.name` replaces only unambiguous matches;
:meth:`Texts.free` is for all other texts of people and tools.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from kanalyze.redact.names import ALLOWED, Names, values, words

#: What takes the place of a match; a kind of what identifies, how it is found, and what takes its place.
_Instead = str | Callable[[re.Match[str]], str]
Rule = tuple[str, re.Pattern[str], _Instead]

_HEX, _OCTET = "[0-9a-f]", r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"

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

#: What is before and after a name: it matches as a whole word, or between underscores.
_ALONE: Final = (r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])")

_SEPARATORS: Final = re.compile(r"[\\/]+")

#: Folders of modules that every machine has: packages (of torch with its own folders), Python, the system, CUDA, ROCm.
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


def _remembered(rule: Callable[[Texts, str], str]) -> Callable[[Texts, str], str]:
    """The rule, whose results and counts are kept by text."""

    @functools.wraps(rule)
    def redacted(texts: Texts, text: str) -> str:
        result, counts = texts.result(rule, text)
        if counts:
            texts.removed.counts.update(counts)
        return result

    return redacted


class Texts:
    """Redaction rules for texts, with the identifying names of one report."""

    def __init__(self, names: Names, removed: Removed) -> None:
        """Redact `names` and patterns; count replacements in `removed`."""
        self.names, self.removed = names, removed
        self.counts: Counter[str] = Counter()
        # reports repeat their texts
        self.result = functools.lru_cache(100_000)(self._result)
        self._roots = ROOTS | {folder.split("/")[1] for folder in names.folders if folder.startswith("/")}
        odd = (folder for folder in names.folders if not _PLAIN_FOLDER.fullmatch(folder))
        self._folders = rule_of(
            "paths", odd, (_NOT_IN_PATH, _FURTHER_FOLDERS), lambda match: "" if match[0][-1:] in "\\/" else "[folder]"
        )
        self._named = rules_of(names)

    def _result(self, rule: Callable[[Texts, str], str], text: str) -> tuple[str, Counter[str]]:
        """What a rule makes of a text, and what it counts; nothing of a text that the user keeps."""
        self.counts = Counter()
        return text if text in self.names.keep else rule(self, text), self.counts

    @_remembered
    def name(self, text: str) -> str:
        """Redacts the name of a kernel, call, range or thread: only unambiguous matches."""
        return self._replaced(text, (_SOURCE_LINE, r"\g<last>"), self._certain_path, prose=False)

    @_remembered
    def free(self, text: str) -> str:
        """Redacts free text, such as a log line or a table cell."""
        return self._replaced(text, (_QUOTED_PATH, r"\g<quote>\g<last>\g<quote>"), self._any_path, prose=True)

    @_remembered
    def path(self, text: str) -> str:
        """Redacts a path to its last component."""
        return self._shortened(text, "")

    @_remembered
    def module(self, text: str) -> str:
        """Redacts the path of a program, library or source file to its last component and the kind of its folder.

        That it is of the system, of CUDA, or of an installed package tells whose code it is; of torch the file stays.
        """
        match = next(filter(None, (kind.search(text) for kind in _KINDS_OF_FOLDERS)), None)
        return self._shortened(text, match["kind"] if match and text not in self.names.folders else "")

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
        self.counts = Counter()
        text = self._subs((ADDRESSES[0], *self._named), text)
        self.removed.counts.update(self.counts)
        return text

    def secret(self) -> str:
        """What takes the place of a secret, which is counted."""
        self.removed.add("secrets")
        return "[secret]"

    def blank(self, what: str, text: str) -> str:
        """Replaces `text` by an empty one, counted as `what`."""
        self.removed.add(what, bool(text))
        return ""

    def _replaced(
        self, text: str, whole: tuple[re.Pattern[str], str], path: Callable[[re.Match[str]], str], *, prose: bool
    ) -> str:
        """Redacts a text: `whole` paths by a pattern and what takes their place, others by a function."""
        text = self._without_secrets(text, prose=prose)
        if "/" in text or "\\" in text:
            paths = (*self._folders, ("paths", PATH, path), ("paths", WINDOWS_PATH, self._last))
            text = self._subs((("URLs", URL, self._url), ("paths", *whole), *paths), text)
        return self._identified(text)

    def _without_secrets(self, text: str, *, prose: bool) -> str:
        """Removes the values of secrets assigned in `text`."""
        parts, at = [], 0
        for begin, end in values(text, prose=prose):
            parts += [text[at:begin], "[secret]", "\n" * text.count("\n", begin, end)]  # numbers of lines stay
            self.counts["secrets"] += 1
            at = end
        return "".join([*parts, text[at:]])

    def _shortened(self, text: str, kind: str) -> str:
        """Redacts a path to its last component, below a `kind` of folder if any."""
        text = text if kind else self._without_secrets(text, prose=False)
        parts = [part for part in _SEPARATORS.split(text) if part]
        short = parts[-1] if parts and _SEPARATORS.search(text) else text
        if kind:
            short = f"{kind}/{_SEPARATORS.split(text)[-1]}"
        elif text in self.names.folders:
            short = "[folder]"
        if short != text:
            self.counts["paths"] += 1
        return self._identified(short)

    def _identified(self, text: str) -> str:
        return self._subs((*ADDRESSES, *self._named) if _ADDRESS_HINT.search(text) else self._named, text)

    def _subs(self, rules: Iterable[Rule], text: str) -> str:
        """Replaces what each rule finds, one after the other, and counts it."""
        for what, pattern, instead in rules:

            def replaced(match: re.Match[str], what: str = what, instead: _Instead = instead) -> str:
                replacement = match.expand(instead) if isinstance(instead, str) else instead(match)
                if replacement != match[0]:
                    self.counts[what] += 1
                return replacement

            text = pattern.sub(replaced, text)
        return text

    def _url(self, match: re.Match[str]) -> str:
        whole = match[0]
        if whole.lower().startswith("file:"):
            return re.sub(r"^file://[^/]*", "", whole, flags=re.IGNORECASE)
        return whole if _PUBLIC_URL.match(whole) and "@" not in whole else "[url]"

    def _any_path(self, match: re.Match[str]) -> str:
        return self._last(match) if match["lead"] or match["folders"] else match[0]

    def _certain_path(self, match: re.Match[str]) -> str:
        root = match["folders"].partition("/")[0]
        certain = match["lead"] or root in self._roots or (match["folders"] and _FILE_NAME.search(match["last"] or ""))
        return self._last(match) if certain else match[0]

    def _last(self, match: re.Match[str]) -> str:
        if match[0].rstrip("\\/") in self.names.folders:
            return "[folder]"
        parts = [part for part in _SEPARATORS.split(match["folders"] or "") if part]
        return match["last"] or (parts[-1] if parts else match[0][-1:])


def rules_of(names: Names, *, least: int = 0) -> list[Rule]:
    """The rules for names that have so many characters, and for texts that were asked for."""
    return [
        *rule_of("texts that were asked for", names.secrets, ("", ""), "[removed]", least),
        *rule_of("host names", names.hosts, _ALONE, "[host]", least),
        *rule_of("user names", names.users, _ALONE, "[user]", least),
    ]


def rule_of(what: str, texts: Iterable[str], around: tuple[str, str], instead: _Instead, least: int = 0) -> list[Rule]:
    """The rule for all `texts` between what is before and after them, longest first; none if there are no texts."""
    listed = sorted((re.escape(text) for text in texts if len(text) >= least), key=len, reverse=True)
    before, after = around
    return [(what, re.compile(f"{before}(?:{'|'.join(listed)}){after}", re.IGNORECASE), instead)] if listed else []
