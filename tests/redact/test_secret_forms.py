"""Secrets of a hundred forms, planted in every kind of file: no byte of any copy holds one, and nothing else goes."""

import gzip
import itertools
import json
import shutil
import sqlite3
from contextlib import closing

import pytest

from kanalyze.redact import Removed, redact
from kanalyze.redact.texts import Names, Texts
from redact.test_ncu import block, message
from support.command import ADD

VALUE = "hunter2-s3cr3t"
BODY = ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj",
        "MzEfYyjiWA4R4/M2bS1GB4t7NXp98C3SC6dVMvDuictGeurT8jNbvJZHtCSuYEvu",
        "NMoSfm76oqFvAp8Gy0iz5sxjZmSnXyCdPEovGhLa0VzMaQ8s+CLOyS56YyCFGeJZ",
        "x9Qz8w=="]  # fmt: skip
KINDS = ["RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY", "PRIVATE KEY", "ENCRYPTED PRIVATE KEY",
         "PGP PRIVATE KEY BLOCK"]  # fmt: skip
HEADERS = {"PGP PRIVATE KEY BLOCK": ["Version: GnuPG v2.2.27 (GNU/Linux)", "Comment: of the cluster", ""],
           "RSA PRIVATE KEY": ["Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,0123456789ABCDEF", ""]}  # fmt: skip
LAYOUTS = {
    "plain": lambda lines: "\n".join(lines) + "\n",
    "crlf": lambda lines: "\r\n".join(lines) + "\r\n",
    "rank": lambda lines: "".join(f"[rank0]: {line}\n" for line in lines),
    "times": lambda lines: "".join(f"2026-11-25 04:49:{n:02} INFO x.py:7 | {line}\n" for n, line in enumerate(lines)),
    "indented": lambda lines: "key: |\n" + "".join(f"    {line}\n" for line in lines),
    "commented": lambda lines: "".join(f"# {line}\n" for line in lines),
    "escaped": lambda lines: 'KEY = "' + "\\n".join(lines) + '\\n"\n',
    "twice escaped": lambda lines: 'x = "{\\"k\\": \\"' + "\\\\n".join(lines) + '\\\\n\\"}"\n',
    "concatenated": lambda lines: "K = (\n" + "".join(f'    "{line}\\n"\n' for line in lines) + ")\n",
    "added": lambda lines: 'k = ""\n' + "".join(f"k += '{line}\\n'\n" for line in lines),
    "triple": lambda lines: 'K = """' + "\n".join(lines) + '"""\n',
    "one line": lambda lines: " ".join(lines) + "\n",
}
PEM = [
    (kind, layout, ended)
    for kind, layout, ended in itertools.product(KINDS, LAYOUTS, (True, False))
    if ended or (layout not in ("added", "one line") and kind not in HEADERS)
]


def key(kind, layout, *, ended=True):
    """A private key as it is printed, and the innocent lines around it."""
    last = [f"-----END {kind}-----"] if ended else []
    return LAYOUTS[layout]([f"-----BEGIN {kind}-----", *HEADERS.get(kind, []), *BODY, *last])


FORMS = [
    *("pwd={}", '"pwd": "{}"', "'pwd': '{}'", "user=x;pwd={};", "user=x;Pwd={};Database=y", "PASSWORD={}"),
    *("Authorization: token {}", "Authorization: Basic {}", "Authorization: Bearer {}", "Authorization: {}"),
    *("Proxy-Authorization: Basic {}", "X-Api-Key: {}", "Cookie: session={}", "Set-Cookie: a=b; session={}; Path=x"),
    *("Authorization: Custom {}", "curl -H 'Authorization: token {}' x", 'curl -H "Cookie: a=b; c={}" x'),
    *('{{"Authorization": "token {}"}}', 'headers["Authorization"] = "token {}"', "AUTH_HEADER=Bearer {}"),
    *("curl -u u:{} x", "curl -uu:{} x", "curl --user u:{} x", "curl --user=u:{}", "curl --proxy-user u:{} x"),
    "curl -u 'u:{}' x",
    *("token := {}", 'token := "{}"', "token => '{}'", "TOKEN%3D{}", "a=1%26TOKEN%3D{}%26b=2"),
    *("TOKEN%253D{}", "%22password%22%3A%22{}%22", "<password>{}</password>", '<token type="x">{}</token>'),
    "&lt;password&gt;{}&lt;/password&gt;",
    *('{{\\"password\\": \\"{}\\"}}', '{{\\\\\\"token\\\\\\": \\\\\\"{}\\\\\\"}}'),
    *('password = b"{}"', 'password = """{}"""', 'password: str = "{}"', 'token = ("{}")', "tokens = ['{}']"),
    *('os.environ["TOKEN"] = "{}"', 'if password == "{}":', "password          =          {}", "dbPwd={}"),
    *("--auth {}", "--hf.token {}", "apiKey={}", "X-API-KEY={}", "SSH_AUTH_SOCK={}", "MY_PIN={}", "PWD_X_KEY={}"),
    '--pass "correct horse {}" x',
    *('subprocess.run(["x", "--password", "{}"])', "A=1\\nTOKEN={}\\nB=2", "?a=b&api_key={}&c=d", "passcode={}"),
]  # fmt: skip


def secretless(text):
    return [part for part in (VALUE, *BODY) if part in text]


def texts():
    return Texts(Names(), Removed())


@pytest.mark.parametrize(("kind", "layout", "ended"), PEM)
def test_the_body_of_a_private_key_goes_and_what_is_around_it_stays(kind, layout, ended, tmp_path):
    (tmp_path / "x.log").write_bytes(f"before it\n{key(kind, layout, ended=ended)}Loading weights done\n".encode())
    redact(tmp_path / "x.log", tmp_path / "out.log")
    before, made = ((tmp_path / name).read_bytes().decode() for name in ("x.log", "out.log"))
    assert secretless(made) == []
    assert made.count("\n") == before.count("\n")
    assert made.startswith("before it\n")
    assert made.endswith("\nLoading weights done\n")
    for rule in (texts().free, texts().name, texts().path):
        assert secretless(rule(before)) == []


def test_keys_that_two_ranks_print_at_once(tmp_path):
    lines = [f"-----BEGIN {KINDS[0]}-----", *BODY, f"-----END {KINDS[0]}-----"]
    (tmp_path / "x.log").write_text("".join(f"[rank{rank}]: {line}\n" for line in lines for rank in (0, 1)) + "end\n")
    redact(tmp_path / "x.log", tmp_path / "out.log")
    assert secretless((tmp_path / "out.log").read_text()) == []
    assert (tmp_path / "out.log").read_text().endswith("\nend\n")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("around", ["{}", "[rank0]: {}", "2026-11-25 04:49:08 INFO | {} of 7", '    "{}",'])
def test_a_value_goes_in_every_form(form, around):
    text = around.format(form.format(VALUE))
    assert secretless(texts().free(text)) == []


@pytest.mark.parametrize(
    "form",
    [
        *("pwd={}", "user=x;pwd={};", "token := {}", "TOKEN%3D{}", "<password>{}</password>", "curl -u u:{} x"),
        *("Authorization: token {}", "password: {}", "Cookie: a={}", '"pwd": "{}"', "--token {}"),
    ],
)
def test_also_in_names_of_ranges(form):
    assert secretless(texts().name(form.format(VALUE))) == []


@pytest.mark.parametrize(
    "text",
    ["token = tokenizer(x)", "tokens := 5", "tokens: 512 batch=8", "token = os.environ['TOKEN_NAME']", "PWD=/a",
     "TOKEN=$HF_TOKEN python train.py", "triton_meta={'signature': {'in_ptr0': '*fp32', 'xnumel': 'i32'}}",
     "docker run -u 1000:1000 x", "void topk_tokens<128, (Token)1>(int*, float)", "python -u train.py",
     "void token_permute<float, 4>(Token<int>, __half*)", "expects -----BEGIN CERTIFICATE----- here",
     "--passes nsys,ncu", "--bypass x", "PASS_COUNT=3", "--max-tokens 4096", "--use-auth false", "--token --next x",
     "keys and values", "tokens per second", "--keyboard qwerty", "monkey=banana", "at::token::x",
     '--token "" x', "--token '' x", '--token "'],
)  # fmt: skip
def test_what_is_no_secret_stays(text):
    assert (texts().free(text), texts().name(text)) == (text, text)


# A folder of every kind of file

SECRET = "uncovered-9-secret"  # noqa: S105 - planted
KEY = key("PRIVATE KEY", "plain")
PLANTED = "".join(f"{form.format(VALUE)}\n" for form in FORMS if "{{" not in form) + KEY


@pytest.fixture
def capture(tmp_path):
    folder = tmp_path / "capture"
    folder.mkdir()
    (folder / "manifest.json").write_text(
        json.dumps({"schema": 1, "kind": "kanalyze capture", "options": {"pwd": "abc-12", "any": PLANTED},
                    "workload": {"args": ["-u", f"u:{VALUE}", "--pass", VALUE]}, "notes": [f"see {SECRET}", PLANTED]})
    )  # fmt: skip
    for name in ("a.log", "x.py", "k.ptx", "k.cu"):
        (folder / name).write_text(f"{PLANTED}see {SECRET}\n")
    cell = PLANTED.replace('"', '""')
    (folder / "ncu.details.csv").write_text(f'"ID","Host Name","Kernel Name"\n"0","","{cell}"\n"1","","{SECRET}"\n')
    names = (PLANTED, f"load {SECRET}", "load 1", *PLANTED.removesuffix(KEY).split("\n"))
    event = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    events = [event | {"name": name, "args": {"Call stack": name}} for name in names]
    trace = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    (folder / "torch.json").write_bytes(trace)
    (folder / "torch2.json.gz").write_bytes(gzip.compress(trace))
    session = message((11, f"ncu --token {VALUE} ./add"))
    source = message((1, 7), (8, message((1, message((1, "/a/add.cu"), (2, f"{PLANTED}// {SECRET}\n"))))))
    result = message((1, 4711), (5, SECRET), (6, "add"), (7, PLANTED))
    (folder / "ncu.ncu-rep").write_bytes(
        b"NVR\0" + len(version := message((1, 7))).to_bytes(4, "little") + version + block(session, source, result)
    )
    shutil.copyfile(ADD, folder / "nsys.sqlite")
    with closing(sqlite3.connect(folder / "nsys.sqlite")) as database:
        database.execute("UPDATE StringIds SET value = value || ?", (f" {SECRET}\n{PLANTED}",))
        database.execute("CREATE TABLE gone AS SELECT value FROM StringIds")
        database.execute("DROP TABLE gone")
        database.commit()
    return folder


@pytest.mark.parametrize(
    "giver", ["a.log", "manifest.json", "ncu.details.csv", "torch.json", "ncu.ncu-rep", "nsys.sqlite"]
)
def test_what_one_file_gives_away_goes_from_all_files(capture, tmp_path, giver):
    path, says = capture / giver, f"MY_TOKEN={SECRET}"
    if giver == "nsys.sqlite":
        with closing(sqlite3.connect(path)) as database:
            database.execute("UPDATE StringIds SET value = ? WHERE id = (SELECT max(id) FROM StringIds)", (says,))
            database.commit()
    elif giver == "ncu.ncu-rep":
        path.write_bytes(path.read_bytes() + block(message((11, f"ncu {says} ./add"))))
    else:
        path.write_bytes(path.read_bytes().replace(f"see {SECRET}".encode(), says.encode()).replace(
            b"load 1", says.encode()).replace(b'"1","","uncov', b'"1","","MY_TOKEN=uncov'))  # fmt: skip
    removed = redact(capture, tmp_path / "out")
    assert removed.left_out == {}
    made = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(made) == 10
    for file in made:
        data = file.read_bytes()
        data = gzip.decompress(data) if file.suffix == ".gz" else data
        planted = (VALUE, SECRET, "abc-12", *BODY)
        assert [text for text in planted if text.encode() in data or text.encode("utf-16-le") in data] == [], file
