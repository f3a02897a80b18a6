"""Reports of Nsight Compute: texts are overwritten in place, and no length changes."""

import pytest

from kanalyze import files
from kanalyze.errors import RedactError
from kanalyze.redact import redact

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
