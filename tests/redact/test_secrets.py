"""Secrets and names in every form and every kind of file: no byte of any copy holds one, and nothing else goes."""

import base64
import gzip
import itertools
import json
import shutil
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given, strategies as st

from kanalyze.redact import Removed, redact
from kanalyze.redact.documents import document
from kanalyze.redact.names import Names, values
from kanalyze.redact.texts import Texts
from redact.test_trace import block, message
from support.command import ADD

TOKENS = (
    "ghp_" + "a1B2" * 9, "github_pat_" + "a1B2" * 8, "glpat-" + "a1B2" * 5, "hf_" + "Ab1" * 11,
    "sk-proj-" + "a1B2" * 8, "AKIA" + "A1B2" * 4, "xoxb-" + "1234-" * 4 + "abcdef", "AIza" + "a1B2_" * 7,
    "nvapi-" + "a1B2" * 8, "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
)  # fmt: skip
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

#: Forms of which exactly the value is taken out.
PLAIN = [
    *("--pass {}", "--pass={}", "--pass '{}'", '--password "{}"', "--passphrase {}", "--db-pwd {}", "--api-key {}"),
    *("--wandb_key={}", "--jwt {}", "-token {}", "MY_TOKEN={}", "export PASSWORD={}", "secret: {}", '"api_key": "{}"'),
    *("'password': '{}'", "a=1;PASS={};b=2", "x --pass {} --epochs 3", "PGPASSWORD={} python train.py"),
    *("client_secret={}", "accessKey={}"),
]


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
    made = (tmp_path / "out.log").read_text()
    assert (secretless(made), made.endswith("\nend\n")) == ([], True)


@pytest.mark.parametrize("form", [*FORMS, *PLAIN])
@pytest.mark.parametrize("around", ["{}", "[rank0]: {}", "2026-11-25 04:49:08 INFO | {} of 7", '    "{}",'])
def test_a_value_goes_in_every_form(form, around):
    assert secretless(texts().free(around.format(form.format(VALUE)))) == []


@pytest.mark.parametrize("form", ["pwd={}", "token := {}", "curl -u u:{}", '"pwd": "{}"', "--token {}", "Cookie: a={}"])
def test_also_in_names_of_ranges(form):
    assert secretless(texts().name(form.format(VALUE))) == []


@pytest.mark.parametrize("form", PLAIN)
@pytest.mark.parametrize("secret", [VALUE, "p@ss/w0rd!", "Tr0ub4dor&3", "quokka-9"])
def test_nothing_but_the_value_goes(form, secret):
    text = form.format(secret)
    assert [text[begin:end] for begin, end in values(text)] == [secret]
    assert texts().free(text) == form.format("[secret]")


@pytest.mark.parametrize(
    "text",
    ["token = tokenizer(x)", "tokens := 5", "tokens: 512 batch=8", "token = os.environ['TOKEN_NAME']", "PWD=/a",
     "TOKEN=$HF_TOKEN python train.py", "triton_meta={'signature': {'in_ptr0': '*fp32', 'xnumel': 'i32'}}",
     "docker run -u 1000:1000 x", "void topk_tokens<128, (Token)1>(int*, float)", "python -u train.py",
     "void token_permute<float, 4>(Token<int>, __half*)", "expects -----BEGIN CERTIFICATE----- here",
     "--passes nsys,ncu", "--bypass x", "PASS_COUNT=3", "--max-tokens 4096", "--use-auth false", "--token --next x",
     "keys and values", "tokens per second", "--keyboard qwerty", "monkey=banana", "at::token::x",
     '--token "" x', "--token '' x", '--token "',
     # nor what is no name, path or address
     "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, array<char*, 3> >(int)",
     "triton_poi_fused_add_0d1d2d",
     "inst/cycle %/register a / b and/or (GB/s) 1/2",
     "Load/Store",
     "malice nodes aliceblue",
     "Number of CUDA events collected: \t7502.",
     "2026-11-20T10:48:37 12:34:56 0x7fc9f77a0000",
     "v13.1.0.3 version 9.14.0.64 2025.3.2.474",
     "tokens=1024 token: None max_tokens: 64",
     "./build/add src/model.py",
     "      LDC R1, c[0x0][0x28] ;  /* 0x00000a00 */",
     "This kernel executes 0 fused and 32768 non-fused FP32 instructions (https://docs.nvidia.com/cuda/index.html#x).",
     ],
)  # fmt: skip
def test_everything_else_stays(text):
    made = Texts(Names(hosts={"node7"}, users={"alice"}), Removed())
    assert (made.free(text), made.name(text), made.removed.counts) == (text, text, {})


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize(
    "around", ["{}", "run_{}_kernel", "void k_{}<int>(float*)", "ns::{}::f", "a {} b", "({})", "x={}"]
)
def test_a_token_goes_from_names_and_texts(token, around):
    for made in (texts().name(around.format(token)), texts().free(around.format(token))):
        assert token not in made
        assert token[5:20] not in made


def test_only_switches_and_numbers_stay_of_the_environment():
    kept = {
        "CUDA_VISIBLE_DEVICES": "0,1,3", "CUDA_LAUNCH_BLOCKING": "1", "CUDA_MODULE_LOADING": "LAZY",
        "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8", "LOCAL_RANK": "3",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128",
    }  # fmt: skip
    gone = {"CUDA_X": "hunter2-s3cr3t", "NCCL_SOCKET_IFNAME": "customernet0", "TORCH_RUN_NAME": "projectx"}
    gone |= {"CUDA_API_KEY": "12", "PATH": "1"}
    made = texts()
    assert document({"schema": 1, "environment": kept | gone}, made)["environment"] == kept
    assert made.removed.counts == {"variables of the environment": len(gone)}


SECRET = "uncovered-9-secret"  # noqa: S105 - planted
IDENTITY = {
    "secret": VALUE, "token": TOKENS[0], "host": "brontes-17", "user": "quillonius", "mail": "jane.doe@corp.example",
    "ip": "10.77.3.21", "mac": "00:1a:2b:3c:4d:5e", "uuid": "6c2e0d36-1418-64af-ccf0-d561691817a5",
    "folder": "geheimlabor",
}  # fmt: skip
LINE = (
    "host {host} user {user} --pass {secret} MY_TOKEN={token} mail {mail} from {ip} {mac} GPU-{uuid} "
    "/home/{user}/{folder}/x.py https://{user}:{secret}@git.{host}.example/r.git"
).format(**IDENTITY)
LINES = [form.format(VALUE) for form in FORMS if "{{" not in form]
GONE = (*IDENTITY.values(), *BODY)
PLANTED = "\n".join([LINE, *LINES, key("PRIVATE KEY", "plain")])


def spellings(text):
    """The bytes that a text may stand as in a file."""
    yield from (text.encode(), text.encode("utf-16-le"), text.encode("utf-16-be"))
    yield base64.b64encode(text.encode()).rstrip(b"=")[:-1]
    yield json.dumps(text)[1:-1].encode()
    yield text.encode().hex().encode()


def left(path, planted):
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [text for text in planted if any(one.lower() in data.lower() for one in spellings(text))]


@pytest.fixture
def capture(tmp_path):
    """Every kind of file, with all that is planted in every place, and a secret that none of them tells."""
    folder = tmp_path / "capture"
    folder.mkdir()
    own = f"/home/{IDENTITY['user']}/{IDENTITY['folder']}"
    manifest = {
        "schema": 1,
        "kind": "kanalyze capture",
        "workload": {
            "command": ["python", f"{own}/x.py", "--pass", VALUE],
            "args": ["-u", f"u:{VALUE}", "--pass", VALUE],
        },
        "machine": {"host": IDENTITY["host"]},
        "environment": {"CUDA_X": VALUE, "MY_TOKEN": TOKENS[0], "USER": IDENTITY["user"], "MAIL": LINE},
        "options": {"pwd": "abc-12", "any": PLANTED, LINE: 1},
        "notes": [f"see {SECRET}", PLANTED],
        "unknown": {"deep": [LINE, {LINE: LINE}]},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for name in (f"{IDENTITY['host']}.log", "x.py", "k.ptx"):
        (folder / name).write_text(f'.file 1 "{own}/k.py"\n{PLANTED}see {SECRET}\n')
    cell = PLANTED.replace('"', '""')
    rows = f'"ID","Host Name","Kernel Name"\n"0","{IDENTITY["host"]}","{cell}"\n"1","","{SECRET}"\n'
    (folder / "ncu.details.csv").write_text(rows)
    event = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    names = (PLANTED, f"load {SECRET}", "load 1", *LINES)
    events = [event | {"name": name, "args": {"x": name, LINE: LINE, "Call stack": name}} for name in names]
    trace = {"schemaVersion": 1, "host_name": IDENTITY["host"], "trace_id": LINE, LINE: LINE, "traceEvents": events}
    (folder / "torch.json").write_text(json.dumps(trace))
    (folder / "torch2.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    session = message((11, f"ncu --token {VALUE} ./add"))
    source = message((1, 7), (8, message((1, message((1, f"{own}/add.cu"), (2, f"{PLANTED}// {SECRET}\n"))))))
    result = message((1, 4711), (5, SECRET), (6, "add"), (7, PLANTED))
    version = message((1, 7))
    head = b"NVR\0" + len(version).to_bytes(4, "little") + version
    (folder / "ncu.ncu-rep").write_bytes(head + block(session, source, result))
    shutil.copyfile(ADD, folder / "nsys.sqlite")
    with closing(sqlite3.connect(folder / "nsys.sqlite")) as database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for column in database.execute(f"PRAGMA table_info({table})").fetchall():
                if column[2] == "TEXT" and not table.startswith("ENUM"):
                    database.execute(f"UPDATE {table} SET {column[1]} = {column[1]} || ?", (f" {SECRET}\n{PLANTED}",))
        database.execute("CREATE TABLE NEW AS SELECT value FROM StringIds")
        database.execute("CREATE TABLE gone AS SELECT value FROM StringIds")
        database.execute("DROP TABLE gone")
        database.commit()
    return folder


@pytest.mark.slow
def test_nothing_that_was_planted_is_left_in_a_capture(capture, tmp_path):
    assert redact(capture, tmp_path / "out").left_out == {}
    made = [path for path in sorted((tmp_path / "out").rglob("*")) if path.is_file()]
    assert len(made) == 9
    assert [path.name for path in made if left(path, GONE)] == []
    assert not [path for path in made if IDENTITY["host"] in str(path)]


@pytest.mark.parametrize(
    "name", ["manifest.json", "brontes-17.log", "x.py", "ncu.details.csv", "torch.json", "ncu.ncu-rep", "nsys.sqlite"]
)
def test_nor_in_a_single_file(capture, tmp_path, name):
    """Of a file alone: what only another one gives away cannot be known, so names of host and user are given."""
    redact(capture / name, tmp_path / "out", remove=[IDENTITY["host"], IDENTITY["user"]])
    assert left(tmp_path / "out", GONE) == []


@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    "giver", ["x.py", "manifest.json", "ncu.details.csv", "torch.json", "ncu.ncu-rep", "nsys.sqlite"]
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
    redact(capture, tmp_path / "out")
    made = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert [path.name for path in made if left(path, (SECRET, "abc-12"))] == []


UUID = "6c2e0d36-1418-64af-ccf0-d561691817a5"


def of_a_machine():
    names = Names()
    names.host("node7.example.org")
    names.user("alice")
    names.folder("/data/My Drive/bob")
    names.folder("/data/project9")
    names.secret("Acme")
    return Texts(names, Removed())


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("/home/alice/x.py(12): f", "x.py(12): f"),
        ("-I/home/alice/include -o /tmp/a/b.o", "-Iinclude -o b.o"),
        ("PATH=/usr/bin:/home/alice/bin", "PATH=bin:bin"),
        ('"/mnt/a b/c d.py" and "/x/y -o /z/w"', '"c d.py" and "y -o w"'),
        ("cd /data/My Drive/bob; ls /data/My Drive/bob/x/y.py", "cd [folder]; ls y.py"),
        (r"C:\Users\alice\p\x.py \\srv\share\y.txt", "x.py y.txt"),
        ("../../home/alice/z.py ~/k/x.py ~bob/y", "z.py x.py y"),
        ("file:///home/alice/x/y.py", "y.py"),
        ("/scratch/alice/", "[user]"),
        ("in /data/project9 and /data/project9/x.py", "in [folder] and x.py"),
        ("see https://docs.nvidia.com/cuda/x#y.", "see https://docs.nvidia.com/cuda/x#y."),
        ("git clone https://git.example.com/r.git", "git clone [url]"),
        ("http://alice:pw@node7/x ssh://node7/y", "[url] [url]"),
        ("10.1.2.3:80 is not 127.0.0.1", "[ip]:80 is not 127.0.0.1"),
        ("fe80::1ff:fe23 2001:db8::1", "[ip] [ip]"),
        ("00:1a:2b:3c:4d:5e", "[mac]"),
        ("busId 0000:00:06.0", "busId [pci]"),
        (f"GPU-{UUID} {UUID.upper()}", "[uuid] [uuid]"),
        ("ask bob.smith@example.com", "ask [email]"),
        ("NODE7.example.org node7 node70 alice's", "[host] [host] node70 [user]'s"),
        ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\nx", "[secret]\n\n\nx"),
        ("project ACME, acme_data", "project [removed], [removed]_data"),
    ],
)
def test_what_identifies_is_replaced(text, made):
    assert of_a_machine().free(text) == made


def test_names_that_many_share_identify_nobody():
    names = Names()
    for name in ("root", "vm", "localhost", "ubuntu", "gpu", "me", "1000", "127.0.0.1", ""):
        names.host(name)
        names.user(name)
    assert (names.hosts, names.users) == (set(), set())


def test_names_are_taken_from_where_they_stand():
    names = Names(keep=frozenset({"kept-host"}))
    names.environment("A=1;USER=bobby;HOSTNAME=node9\0HF_TOKEN=topsecretvalue\0HOME=/home/carol\0PODS=x")
    names.text("node3:12:12 [0] NCCL INFO Bootstrap\n/tmp/torchinductor_dave/ab.py")
    names.text("node4_12.345.pt.trace.json.gz")
    names.host("kept-host")
    assert names == Names(
        hosts={"node9", "node3", "node4"},
        users={"bobby", "carol", "dave"},
        folders={"/home/carol"},
        secrets={"topsecretvalue"},
        keep=frozenset({"kept-host"}),
    )


@given(
    st.text(st.characters(codec="utf-8")),
    st.sampled_from(["/home/alice/x.py", "node7", "10.1.2.3", UUID, "/data/My Drive/bob/f", r"C:\Users\alice\f"]),
)
def test_a_second_time_nothing_is_left_to_do(around, told):
    once = of_a_machine().free(f"{around} {told} {around}")
    again = of_a_machine()
    assert (again.free(once), again.removed.counts) == (once, {})


@pytest.mark.parametrize(
    ("rule", "text", "made"),
    [
        # in names only what is certain is replaced
        ("name", "/model/layers.0/attn/MatMul", "/model/layers.0/attn/MatMul"),
        ("name", "load /data/set/part-0001", "load part-0001"),
        ("name", "/weka/x/train.py", "train.py"),
        ("name", "/home/alice/my project/x.py(3): main", "x.py(3): main"),
        ("name", "torch/nn/modules/module.py(1773): _call_impl", "torch/nn/modules/module.py(1773): _call_impl"),
        ("name", "operator/(a, b)", "operator/(a, b)"),
        ("name", "alice_kernel", "[user]_kernel"),
        ("name", "send 10.0.0.7", "send [ip]"),
        # of a path the last part stays
        ("path", "/opt/a b/bin/python3", "python3"),
        ("path", "add", "add"),
        ("path", r"D:\a b\c.dll", "c.dll"),
        ("path", "/home/alice", "[user]"),
        ("path", "", ""),
        # of a module the kind of its folder, too
        ("module", "/home/jane/secret/app", "app"),
        ("module", "/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/libc.so.6"),
        ("module", "/lib64/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"),
        ("module", "/usr/local/cuda-13.0/lib64/libcudart.so.13", "/usr/local/cuda/libcudart.so.13"),
        ("module", "/opt/nvidia/nsight-systems/2025/libToolsInjection64.so", "/opt/nvidia/libToolsInjection64.so"),
        ("module", "/home/jane/venv/lib/python3.12/site-packages/acme/net.py", "/site-packages/net.py"),
        ("module", "/home/jane/venv/site-packages/torch/utils/data/x.py", "/site-packages/torch/utils/data/x.py"),
        ("module", "/home/jane/conda/lib/python3.12/threading.py", "/lib/python3.12/threading.py"),
        ("module", "/home/jane/code/lib/mine.so", "mine.so"),
        ("module", "[kernel.kallsyms]", "[kernel.kallsyms]"),
        ("module", "<string>", "<string>"),
    ],
)
def test_what_stays_of_names_paths_and_modules(rule, text, made):
    redacted = of_a_machine()
    assert getattr(redacted, rule)(text) == made
    assert getattr(redacted, rule)(made) == made
    assert rule != "module" or redacted.removed.counts["paths"] == (text != made)
