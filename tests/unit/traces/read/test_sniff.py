"""What a file that is no JSON is told to be, by its first bytes."""

import pytest

from chopperd.traces.read.sniff import other_format

#: Two packets: a track descriptor and an event, by hand from perfetto's field numbers.
PACKET = b"\x0a\x0f\xe2\x03\x0c\x08\x4d\x12\x08stream 7"


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (PACKET, "t.json", "Perfetto"),
        (PACKET * 300, "t.json", "Perfetto"),
        (PACKET[:9], "t.json", "Perfetto"),
        # The length of the first packet reads as a brace: the following packets tell.
        (b"\x0a{" + b"\x08\x00" * 61 + b"\x08" + PACKET * 4, "t", "Perfetto"),
        (b"\x0a\x80\x20" + b"\x08\x00" * 2047, "long packet", "Perfetto"),
        (b"SQLite format 3\0" + bytes(99), "t.json", "SQLite"),
        (b"NVIDIA Nsight Systems report\0", "t.json", "Nsight"),
        (b"\x01\x02", "report1.nsys-rep", "Nsight"),
        (bytes(257) + b"ustar", "t.json", "tar archive: unpack"),
        (b"# chopperd-samples/1 {}\n", "s.csv", "--samples"),
    ],
)
def test_other_formats_are_told_and_what_to_do_instead(text: bytes, name: str, says: str) -> None:
    other = other_format(text, name)
    assert other is not None
    assert all(word in other for word in says.split(": "))
    assert "\n" not in other


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\n", b"\n  x", b'\n{"a": 1}', b"\n[]", b'{"traceEvents": [', b"[{", bytes(4096),
        bytes(range(256)) * 16, b"step 1 took 30 ms\n", b"\n{\x01" + b" " * 122 + b"\n \x08",
        b"\x0a\x00", b"\x0a\x05\x01", b"\x0a\xff\xff\xff\xff\xff\xff", b"\xef\xbb\xbf{",
    ],
)  # fmt: skip
def test_json_text_and_what_is_nothing_known_are_no_other_format(text: bytes) -> None:
    assert other_format(text, "trace.json") is None


def test_json_under_the_name_of_a_report_is_json() -> None:
    assert other_format(b'{"traceEvents": []}', "report1.nsys-rep") is None
