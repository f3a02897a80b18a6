"""What identifies by its form alone: addresses, ids, keys, and paths. Only patterns; :mod:`.texts` applies them."""

from __future__ import annotations

import re
from typing import Final

from kanalyze.redact.rules.words import words

_OCTET: Final = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"

#: Addresses and ids by kind, with what stands in their place. Looked for in this order.
ADDRESSES: Final = (
    (
        "secrets",
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END[^-]*-----|\Z)"
            r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
            r"|(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,})"
            r"|A[KS]IA[0-9A-Z]{16}|xox[abeoprs]-[\w-]{10,}|AIza[\w-]{30,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{16,}|dckr_pat_[\w-]{16,}"
            # of a word the first beginning alone is tried: each would go along all that follows
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

#: None of ADDRESSES is in a text without one of these.
ADDRESS_HINT: Final = re.compile(
    r"[@.:]|-[0-9a-fA-F-]|gh[pousr]_|github_|hf_|sk-|A[KS]IA|xox|AIza|npm_|pypi-|dckr|nvapi|glpat|eyJ"
)

URL: Final = re.compile(r"\b[a-z][a-z0-9+.-]{0,30}://[^\s\"'<>)\]},;\\]+", re.IGNORECASE)

#: Pages that tools point to; every other address may be of somebody's own network.
PUBLIC_URL: Final = re.compile(
    r"https?://(?:[\w-]+\.)*(?:nvidia\.com|pytorch\.org|python\.org|triton-lang\.org|intel\.com|wikipedia\.org|arxiv\.org)"
    r"(?=[/?#.]|$)|https?://github\.com/(?:pytorch|NVIDIA|triton-lang|openai/triton)\b",
    re.IGNORECASE,
)

_PART: Final = r"[^\s\0-\x1f/\\\"'`<>|:;,*?()\[\]{}]+"

#: A path begins where no other does.
NOT_IN_PATH: Final = r"(?<![\w.~%)\]}\\/<-])"

#: A folder that PATH and WINDOWS_PATH find as a whole, and what may follow one that they do not.
PLAIN_FOLDER: Final = re.compile(rf"(?:[A-Za-z]:)?(?:[\\/]{_PART})+")
FURTHER_FOLDERS: Final = rf"(?:(?:[\\/]+{_PART})*[\\/]+|(?![\w.-]))"

#: A path of any system: what leads to its last part, and that part. A relative one only where it climbs or is a home.
PATH: Final = re.compile(
    rf"(?:{NOT_IN_PATH}|(?<=-[A-Z]))"
    rf"(?P<lead>~[\w.-]*|\.\.(?:/\.\.)*)?/(?P<folders>(?:{_PART}/+)*)(?P<last>{_PART})?"
)
WINDOWS_PATH: Final = re.compile(rf"(?<!\w)(?:[A-Za-z]:[\\/]+|\\\\)(?P<folders>(?:{_PART}[\\/]+)+)(?P<last>{_PART})?")

#: A path in quotes may have spaces. One with options or a second path after it is a command.
QUOTED_PATH: Final = re.compile(
    r"(?P<quote>[\"'])(?![^\"'\n]*\s[-/])(?:/|~/|[A-Za-z]:[\\/])[^\"'\n\0]*[\\/](?P<last>[^\"'\n\0/\\]+)(?P=quote)"
)

#: A line of source as profilers write it, ``/home/a b/train.py(12): main``, whole.
SOURCE_LINE: Final = re.compile(r"\A(?:/|[A-Za-z]:[\\/]).*[\\/](?P<last>[^/\\]+\(\d+\): .*)\Z", re.DOTALL)

#: Where file systems begin. A name such as ``/layer1/conv`` begins elsewhere: some frameworks call their layers so.
ROOTS: Final = words(
    """
    afs autofs bin boot build builds cephfs cluster content data datasets dbfs dev efs etc export exports fast fsx gpfs
    gluster home homes hpc kaggle lib lib32 lib64 lustre media misc mnt mount nfs nfs4 nix opt private proc project
    projects ptmp pub raid root run runs sandbox sbin scratch sdf share shared snap srv storage sys tmp usr users Users
    var vast vol volume Volumes volumes weka work workdir workspace workspaces
    """
)

#: What files are called that a range or kernel may be named for.
FILE_NAME: Final = re.compile(
    r"\.(?:pyc?|pyx|ipynb|cuh?|cubin|ptx|c|cc|cpp|cxx|h|hpp|hh|so(?:\.\d+)*|dll|dylib|exe|sh|jsonl?|gz|zip|tar|ya?ml|toml"
    r"|txt|log|csv|parquet|sqlite|nsys-rep|ncu-rep|pt|pth|ckpt|safetensors|bin|onnx|engine|plan|npy|npz|h5|db)$",
    re.IGNORECASE,
)
