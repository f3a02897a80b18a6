"""Patterns that identify by form alone: addresses, ids, keys, paths. :mod:`.texts` applies them."""

from __future__ import annotations

import re
from typing import Final

from kanalyze.redact.rules import ALLOWED, words

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
