"""What becomes of single texts: everything that identifies goes, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.redact import Removed
from kanalyze.redact.names import Names
from kanalyze.redact.texts import Texts

UUID = "6c2e0d36-1418-64af-ccf0-d561691817a5"


def texts():
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
    assert texts().free(text) == made


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
    once = texts().free(f"{around} {told} {around}")
    again = texts()
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
    redacted = texts()
    assert getattr(redacted, rule)(text) == made
    assert getattr(redacted, rule)(made) == made
    assert rule != "module" or redacted.removed.counts["paths"] == (text != made)
