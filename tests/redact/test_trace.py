"""Reports of Nsight Compute and traces of torch.profiler: only texts change, and unknown keys of traces lose theirs."""

import gzip
import json

import pytest
from hypothesis import given, strategies as st

from kanalyze import files
from kanalyze.errors import DamagedReportError, RedactError, UnknownFormatError
from kanalyze.redact import Removed, redact
from kanalyze.redact.documents import GONE, KEYS, NAMES, PATHS, Trace
from kanalyze.redact.names import Names
from kanalyze.redact.texts import Texts

TRACE = """
{
  "schemaVersion": 1, "host_name": "brontes-17", "PT_PROFILER_JOB_NAME": "uncovered-job",
  "deviceProperties": [{"id": 0, "name": "NVIDIA H200",
    "numSms": 132, "uuid": "GPU-6c2e0d36-1418-64af-ccf0-d561691817a5"}],
  "trace_id": "5262CCF840464D46B73826D02028737F",
  "team": {"lead": "quillon", "size": 7, "sites": ["uncovered", {"at": "x"}]},
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2,
    "pg_config": [{"pg_name": "0", "ranks": "[0, 1]"}]},
  "displayTimeUnit": "ms", "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 4299665129571.151, "dur": 164.842,
   "args": {"External id": 513, "Concrete Inputs": ["", "[256, -1]", "2.", "/home/quillon/set/a.bin"],
    "Input Dims": [[2, 3]]}},
  {"ph": "X", "cat": "python_function", "name": "/home/quillon/my model/train.py(12): main",
   "pid": 7, "tid": 7, "ts": 1, "dur": 2,
   "args": {"Python id": 1, "Call stack": "/home/quillon/a.py(1): f;torch/nn/modules/module.py(2): g"}},
  {"ph": "X", "cat": "kernel", "name": "void k<float>(float*, {lambda(int)#1})",
   "pid": 0, "tid": 7, "ts": 1e3, "dur": 2.5e-1,
   "args": {"grid": [1, 1, 1], "est. achieved occupancy %": 33, "memory bandwidth (GB/s)": 1.5,
    "new key": "uncovered"}},
  {"ph": "X", "cat": "cpu_op", "name": "triton_poi_0", "pid": 7, "tid": 7, "ts": 9, "dur": N/A,
   "args": {"kernel_file": "/data/torchinductor_quillon/ab/cd.py", "new number": 12,
    "new list": [1, "uncovered", 2]}},
  {"ph": "X", "cat": "user_annotation", "name": "step of quillon on brontes-17 \\u2014 \\"a\\/b\\" 10.0.0.7",
   "pid": 7, "ts": 9},
  {"name": "thread_name", "ph": "M", "pid": 7, "tid": 8,
   "args": {"name": "thread 8 (hf_aaaaaaaaaaaaaaaaaaaaaaaa)"}}
  ],
  "traceName": "/projekte/geheim/trace.json"
}"""


def copied(data, piece=1 << 22):
    texts = Texts(known(), Removed())
    work = Trace(texts)
    made = [work.more(data[at : at + piece]) for at in range(0, len(data), piece)]
    return b"".join([*made, work.more(b"", last=True)]), texts.removed.counts


def known():
    names = Names()
    names.host("brontes-17")
    names.user("quillon")
    return names


@pytest.fixture(scope="module")
def made():
    """What becomes of the trace."""
    return copied(TRACE.encode())[0].decode()


def test_a_trace_whole(tmp_path, gold, made):
    (tmp_path / "trace.json").write_text(TRACE)
    removed = redact(tmp_path / "trace.json", tmp_path / "out.json")
    assert (tmp_path / "out.json").read_text() == made
    gold("\n".join([made, *(f"{count} {what}" for what, count in removed.counts.items()), ""]), "redacted_trace.txt")


@pytest.mark.parametrize("size", [*range(0, len(TRACE), 97), len(TRACE) - 1])
def test_one_that_was_cut_off_stays_so_and_tells_nothing(size):
    made, _ = copied(TRACE[:size].encode())
    assert "quillon" not in made.decode()
    assert "brontes" not in made.decode()


TEXTS = st.sampled_from(
    ["a::mm", "a/b", "/home/quillon/x y.py(3): f", "quillon", "", ":", '"', "\\", "\\u0041", "é", "[1, -2]", "10.0.0.9"]
) | st.text(max_size=8)
SOME_KEYS = st.sampled_from(
    [*KEYS[:14], *PATHS, *GONE, "est. achieved occupancy %", "unknown", "un/known", ":", 'a"b']
) | st.text(max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SOME_KEYS, inner, max_size=4),
    max_leaves=12,
)


def slowly(value, texts, key=""):
    """What has to become of a value: the same rules, on the whole document in memory."""
    if isinstance(value, dict):
        return {
            texts.free(name) if name not in KEYS else name: without_texts(item, texts)
            if name not in KEYS
            else slowly(item, texts, name)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [slowly(item, texts) for item in value]
    if isinstance(value, str):
        return texts.path(value) if key in PATHS else texts.name(value) if key in NAMES else texts.free(value)
    return value


def without_texts(value, texts):
    if isinstance(value, dict):
        return {texts.free(name): without_texts(item, texts) for name, item in value.items()}
    if isinstance(value, list):
        return [without_texts(item, texts) for item in value]
    return "" if isinstance(value, str) else value


@given(VALUES, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 40))
def test_any_document_becomes_what_the_rules_say_wherever_it_is_cut(value, indent, ascii_only, piece):
    data = json.dumps({"traceEvents": value}, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    made, _ = copied(data, piece)
    wanted = slowly({"traceEvents": value}, Texts(known(), Removed()))
    assert json.loads(made.decode("utf-8", "surrogatepass")) == wanted
    assert copied(data, piece) == copied(data)


def test_a_packed_trace_stays_packed_and_tells_neither_name_nor_time(tmp_path, made):
    header = b"\x1f\x8b\x08\x08" + (77).to_bytes(4, "little") + b"\2\3/home/quillon/trace.json\0"
    (tmp_path / "trace.json.gz").write_bytes(header + gzip.compress(TRACE.encode())[10:])
    redact(tmp_path / "trace.json.gz", tmp_path / "out.json.gz")
    packed = (tmp_path / "out.json.gz").read_bytes()
    assert gzip.decompress(packed).decode() == made
    assert packed[:10] == b"\x1f\x8b\x08\0\0\0\0\0" + packed[8:9] + b"\xff"


def test_a_packed_trace_that_was_cut_off_is_kept_as_far_as_it_goes(tmp_path, made):
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(TRACE.encode() * 40, mtime=0)[:-40])
    removed = redact(tmp_path / "trace.json.gz", tmp_path / "out.json")
    assert removed.notes == ["trace.json.gz is cut off, as it was before"]
    assert (tmp_path / "out.json").read_text().startswith(made)
    assert "quillon" not in (tmp_path / "out.json").read_text()
    # other texts are damaged
    (tmp_path / "log.txt").write_bytes(gzip.compress(b"line\n" * 9999, mtime=0)[:-9])
    with pytest.raises(DamagedReportError, match="the packed data end early"):
        redact(tmp_path / "log.txt", tmp_path / "out.txt")
    assert not (tmp_path / "out.txt").exists()


def test_the_host_in_the_name_of_a_file_goes_from_its_text(tmp_path):
    (tmp_path / "steropes_1.2.pt.trace.json").write_text('{"traceEvents": [{"ph": "X", "name": "steropes"}]}')
    redact(tmp_path / "steropes_1.2.pt.trace.json", tmp_path / "out.json")
    assert (tmp_path / "out.json").read_text() == '{"traceEvents": [{"ph": "X", "name": "[host]"}]}'


@pytest.mark.parametrize(
    ("text", "known"),
    [
        *((text, True) for text in ('[{"ph": "X", "name": "a"}]', '{"traceEvents": []}', '{"schemaVersion": 1, "d')),
        *((text, False) for text in ("", "{}", "[1, 2]", '{"name": "x"}', "\0\0\0\0")),
    ],
)
def test_traces_are_told_by_what_is_in_them_and_what_is_none_is_refused(text, known, tmp_path):
    (tmp_path / "any.name").write_text(text)
    if known:
        redact(tmp_path / "any.name", tmp_path / "out")
        assert (tmp_path / "out").read_text() == text
    else:
        with pytest.raises(UnknownFormatError):
            redact(tmp_path / "any.name", tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["any.name"]


HASH = "6c2e0d36-1418-64af-ccf0-d561691817a5"


def message(*fields):
    """A message of protocol buffers, of fields (key, number or bytes or text)."""
    return b"".join((files.number if isinstance(value, int) else files.sized)(key, value) for key, value in fields)


def block(session, *entries, process="/projekte/geheim/add"):
    sized = b"".join(len(entry).to_bytes(4, "little") + entry for entry in entries)
    header = message((1, 0), (3, session), (5, len(sized)), (6, message((1, 4711), (2, "127.0.0.1"), (3, process))))
    return len(header).to_bytes(4, "little") + header + sized


def report(system="brontes-17", address="10.20.30.40"):
    kernel, processor = (2, "#1 SMP uncovered-forge"), (3, "Intel(R) Xeon(R)")
    network = (7, message((1, address), (2, 1)))
    target = message((1, "Linux"), kernel, processor, (4, "x86_64"), (5, system), (6, 2), network)
    lines = b"/projekte/geheim\0add.cu\0/usr/local/cuda/include/x.h"
    code = b"\x7fELF\x02\x01\0\xff" + lines + b"\0\xfe\xff\0\0" + bytes(range(256))
    file = message((1, "/projekte/geheim/add.cu"), (2, "// by bob@example.com\nint main() {}\n"))
    source = message((1, 7), (4, code), (8, message((1, file))))
    uuid = message((1, "device__uuid"), (2, message((1, HASH))))
    metrics = (13, message((1, 3), (2, message((5, 4096)))))
    result = message((1, 4711), (5, "_Z3addiPf"), (6, "add"), (7, "add(int, float *)"), metrics)
    return (
        b"NVR\0"
        + len(version := message((1, 7))).to_bytes(4, "little")
        + version
        + block(message((2, 1795156592), (3, target)))
        + block(b"", source, result)
        + block(message((4, target)))
        + block(message((6, message((1, 0), (2, "NVIDIA H200"), (3, uuid)))))
        + block(message((8, message((1, "CUDA Version"), (2, "13.0")))))
        + block(message((11, "/opt/nvidia/ncu --set full --token s3cr3tvalue ./add --n 5 ")))
        + block(message((12, "uncovered: something new")))
        + block(message((13, "uncovered: something new")))
    )


def redacted(data, folder, **options):
    (folder / "in.ncu-rep").write_bytes(data)
    removed = redact(folder / "in.ncu-rep", folder / "out.ncu-rep", **options)
    return (folder / "out.ncu-rep").read_bytes(), removed


def test_texts_are_overwritten_and_nothing_moves(tmp_path):
    before = report()
    after, removed = redacted(before, tmp_path)
    wanted = before.replace(b"/projekte/geheim", b"/________/______").replace(b"/opt/nvidia/ncu", b"/___/______/ncu")
    wanted = wanted.replace(b"/usr/local/cuda/include/x.h", b"/___/_____/____/_______/x.h")
    of_forms = (b"10.20.30.40", b"bob@example.com", HASH.encode(), b"s3cr3tvalue", b"brontes-17")
    for told in (*of_forms, b"uncovered: something new", b"#1 SMP uncovered-forge"):
        wanted = wanted.replace(told, b"_" * len(told))
    assert after == wanted
    found = {"e-mail addresses": 1, "UUIDs": 1, "secrets": 1}
    assert removed.counts == {"host names and addresses": 8, "paths": 12} | found


def test_what_the_user_names_goes_and_what_he_keeps_stays(tmp_path):
    after, _ = redacted(report(system="gpu-farm-9"), tmp_path, keep=["add"], remove=["int main"])
    assert b"________() {}" in after
    assert b"add(int, float *)" in after


def test_short_names_do_not_touch_what_is_no_text(tmp_path):
    """A name of three letters stands in code by chance."""
    before = report(system="xyz").replace(bytes(range(0x76, 0x7C)), b"\0\0xyz\0")
    after, _ = redacted(before, tmp_path)
    assert after.count(b"xyz") == 1


@pytest.mark.parametrize(
    "data",
    [*(report()[: int(len(report()) * share)] for share in (0.02, 0.3, 0.7, 0.99)), b"NVR\0\2\0\0\0" + b"\xff" * 99],
)
def test_a_report_that_cannot_be_followed_is_refused(data, tmp_path):
    (tmp_path / "in.ncu-rep").write_bytes(data)
    with pytest.raises(RedactError, match="not built as those known here"):
        redact(tmp_path / "in.ncu-rep", tmp_path / "out.ncu-rep")
    assert [path.name for path in tmp_path.iterdir()] == ["in.ncu-rep"]
