"""What becomes of single texts: everything that identifies goes, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.redact import Removed
from kanalyze.redact.texts import Names, Texts

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
        ("WANDB_API_KEY=abcdef0123456789", "WANDB_API_KEY=[secret]"),
        ("--token s3cr3tvalue --api-key=s3cr3tvalue", "--token [secret] --api-key=[secret]"),
        ("Authorization: Bearer abcdefgh12345678", "Authorization: Bearer [secret]"),
        ("ghp_" + "a1" * 12 + " hf_" + "b2" * 12, "[secret] [secret]"),
        ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\nx", "[secret]\n\n\nx"),
        ("project ACME, acme_data", "project [removed], [removed]_data"),
    ],
)
def test_what_identifies_is_replaced(text, made):
    assert texts().free(text) == made


@pytest.mark.parametrize(
    "text",
    [
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
)
def test_everything_else_stays(text):
    made = texts()
    assert (made.free(text), made.name(text), made.removed.counts) == (text, text, {})


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("/model/layers.0/attn/MatMul", "/model/layers.0/attn/MatMul"),
        ("load /data/set/part-0001", "load part-0001"),
        ("/weka/x/train.py", "train.py"),
        ("/home/alice/my project/x.py(3): main", "x.py(3): main"),
        ("torch/nn/modules/module.py(1773): _call_impl", "torch/nn/modules/module.py(1773): _call_impl"),
        ("operator/(a, b)", "operator/(a, b)"),
        ("alice_kernel", "[user]_kernel"),
        ("send 10.0.0.7", "send [ip]"),
    ],
)
def test_in_names_only_what_is_certain_is_replaced(text, made):
    assert texts().name(text) == made


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("/opt/a b/bin/python3", "python3"),
        ("add", "add"),
        (r"D:\a b\c.dll", "c.dll"),
        ("/home/alice", "[user]"),
        ("", ""),
    ],
)
def test_of_a_path_the_last_part_stays(text, made):
    assert texts().path(text) == made


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
