"""Secrets planted at every place of every kind of file are gone from the copy, in every spelling."""

import base64
import gzip
import json
import re
import shutil
import sqlite3
import time
from contextlib import closing

import pytest

from kanalyze.redact import Removed, redact
from kanalyze.redact.assigned import values
from kanalyze.redact.documents import document
from kanalyze.redact.texts import ADDRESSES, URL, Names, Texts
from support.command import ADD

TOKENS = (
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2" * 8,
    "glpat-" + "a1B2" * 5,
    "hf_" + "Ab1" * 11,
    "sk-proj-" + "a1B2" * 8,
    "AKIA" + "A1B2" * 4,
    "xoxb-" + "1234-" * 4 + "abcdef",
    "AIza" + "a1B2_" * 7,
    "nvapi-" + "a1B2" * 8,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
)
SECRETS = ("hunter2-s3cr3t", "p@ss/w0rd!", "Tr0ub4dor&3", "quokka-9")


def texts():
    return Texts(Names(), Removed())


def taken_out(text):
    return [text[begin:end] for begin, end in values(text)]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "form",
    [
        *("--pass {}", "--pass={}", "--pass '{}'", '--password "{}"', "--passphrase {}", "--db-pwd {}", "--api-key {}"),
        *("--wandb_key={}", "--auth {}", "--jwt {}", "--hf.token {}", "-token {}", "MY_TOKEN={}", "export PASSWORD={}"),
        *("secret: {}", '"api_key": "{}"', "'password': '{}'", "X-Api-Key: {}", "Authorization: Bearer {}"),
        "a=1;PASS={};b=2",
        *("x --pass {} --epochs 3", "PGPASSWORD={} python train.py", "client_secret={}", "accessKey={}"),
    ],
)  # fmt: skip
def test_a_value_of_a_secret_goes_however_it_is_given(form, secret):
    text = form.format(secret)
    assert taken_out(text) == [secret]
    assert texts().free(text) == form.format("[secret]")


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
        "CUDA_VISIBLE_DEVICES": "0,1,3",
        "CUDA_LAUNCH_BLOCKING": "1",
        "CUDA_MODULE_LOADING": "LAZY",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "8",
        "LOCAL_RANK": "3",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128",
    }
    gone = {"CUDA_X": "hunter2-s3cr3t", "NCCL_SOCKET_IFNAME": "customernet0", "TORCH_RUN_NAME": "projectx"}
    gone |= {"CUDA_API_KEY": "12", "PATH": "1"}
    made = texts()
    assert document({"schema": 1, "environment": kept | gone}, made)["environment"] == kept
    assert made.removed.counts == {"variables of the environment": len(gone)}


# Planting

PLANTED = {
    "secret": "hunter2-s3cr3t",
    "token": TOKENS[0],
    "host": "brontes-17",
    "user": "quillonius",
    "mail": "jane.doe@corp.example",
    "ip": "10.77.3.21",
    "mac": "00:1a:2b:3c:4d:5e",
    "uuid": "6c2e0d36-1418-64af-ccf0-d561691817a5",
    "folder": "geheimlabor",
}
LINE = (
    "host {host} user {user} --pass {secret} MY_TOKEN={token} mail {mail} from {ip} {mac} GPU-{uuid} "
    "/home/{user}/{folder}/x.py https://{user}:{secret}@git.{host}.example/r.git"
).format(**PLANTED)


def spellings(text):
    """The bytes that a text may stand as in a file."""
    yield from (text.encode(), text.encode("utf-16-le"), text.encode("utf-16-be"))
    yield base64.b64encode(text.encode()).rstrip(b"=")[:-1]
    yield json.dumps(text)[1:-1].encode()
    yield text.encode().hex().encode()


def left(path):
    data = gzip.decompress(path.read_bytes()) if path.read_bytes()[:2] == b"\x1f\x8b" else path.read_bytes()
    low = data.lower()
    return sorted(what for what, text in PLANTED.items() for one in spellings(text) if one.lower() in low)


MANIFEST = {
    "schema": 1,
    "kind": "kanalyze capture",
    "workload": {
        "command": ["python", f"/home/{PLANTED['user']}/{PLANTED['folder']}/x.py", "--pass", PLANTED["secret"]]
    },
    "machine": {"host": PLANTED["host"]},
    "environment": {"CUDA_X": PLANTED["secret"], "MY_TOKEN": PLANTED["token"], "USER": PLANTED["user"], "MAIL": LINE},
    "options": {"any": LINE, LINE: 1},
    "notes": [LINE],
    "unknown": {"deep": [LINE, {LINE: LINE}]},
}


@pytest.fixture
def capture(tmp_path):
    folder = tmp_path / "capture"
    (folder / "logs").mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    (folder / "logs" / f"{PLANTED['host']}.log").write_text(f"{LINE}\n")
    (folder / "k.ptx").write_text(f'.file 1 "/home/{PLANTED["user"]}/{PLANTED["folder"]}/k.py"\n// {LINE}\n')
    (folder / "x.py").write_text(f"# {LINE}\nTOKEN = '{PLANTED['token']}'\npassword = \"{PLANTED['secret']}\"\n")
    (folder / "ncu.details.csv").write_text(f'"ID","Host Name","Kernel Name"\n"0","{PLANTED["host"]}","{LINE}"\n')
    arguments = {"x": LINE, LINE: LINE, "Call stack": LINE}
    event = {"ph": "X", "cat": "cpu_op", "name": LINE, "pid": 1, "tid": LINE, "ts": 1, "dur": 1, "args": arguments}
    whole = {"schemaVersion": 1, "host_name": PLANTED["host"], "trace_id": LINE, LINE: LINE, "traceEvents": [event]}
    (folder / "torch.json").write_text(json.dumps(whole))
    shutil.copyfile(ADD, folder / "nsys.sqlite")
    with closing(sqlite3.connect(folder / "nsys.sqlite")) as database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if table.startswith("ENUM") or table == "StringIds":
                continue
            for column in database.execute(f"PRAGMA table_info({table})").fetchall():
                if column[2] == "TEXT":
                    database.execute(f"UPDATE {table} SET {column[1]} = {column[1]} || ?", (f"\n{LINE}",))
        database.execute("UPDATE StringIds SET value = value || ' ' || ?", (LINE,))
        database.execute("CREATE TABLE NEW (text TEXT)")
        database.execute("INSERT INTO NEW VALUES (?)", (LINE,))
        database.commit()
    return folder


def test_nothing_that_was_planted_is_left_in_a_capture(capture, tmp_path):
    redact(capture, tmp_path / "out")
    made = [path for path in sorted((tmp_path / "out").rglob("*")) if path.is_file()]
    assert len(made) >= 6
    assert {str(path.relative_to(tmp_path / "out")): left(path) for path in made if left(path)} == {}
    assert not [path for path in made if PLANTED["host"] in str(path)]


@pytest.mark.parametrize(
    "name", ["manifest.json", "logs/brontes-17.log", "x.py", "ncu.details.csv", "torch.json", "nsys.sqlite"]
)
def test_nor_in_a_single_file(capture, tmp_path, name):
    """Of a file alone: what only another one gives away cannot be known, so names of host and user are given."""
    out = tmp_path / "out"
    redact(capture / name, out, remove=[PLANTED["host"], PLANTED["user"]])
    assert left(out) == []


# Work


SLOW = (
    *("-", "token-", "--pass ", "eyJ-", "eyJ_", "+a", "a+", "a.", "@a", "a@a.", "/a", "\"'", "-----BEGIN ", "ghp_"),
    *("key=", '\\"', "--", "1.", "a:", "::", " "),
)


def cost(text):
    def once():
        begun = time.process_time()
        texts().free(text)
        texts().name(text)
        Names().text(text)
        return time.process_time() - begun

    return min(once() for _ in range(3))


@pytest.mark.one_in(14)
@pytest.mark.parametrize("piece", SLOW)
def test_a_text_four_times_as_long_takes_no_more_than_its_share(piece):
    size = 40_000 // len(piece)
    assert cost(piece * 4 * size) < 10 * max(cost(piece * size), 0.002)


def test_dashes_by_the_ten_thousand():
    """What an ASCII drawing in a log has."""
    assert texts().free("-" * 100_000) == "-" * 100_000
    assert all(pattern.search("-" * 100_000) is None for _, pattern, _ in ADDRESSES)
    assert URL.search("a+" * 50_000) is None
    assert re.fullmatch(r"(?:-+\n)+", texts().free(("-" * 500 + "\n") * 100))
