"""The flight recorder's last minute: small frames, each there as soon as it was appended."""

from pathlib import Path

from chopperd.errors import StoreError
from chopperd.store.append_file import AppendFile
from chopperd.store.recorder.chunk import SampleChunk, decoded_chunk, encoded_chunk
from chopperd.store.recorder.frames import FrameKind, encoded_frame, read_payload, scanned


class Journal:
    """A file that takes chunks as they come, until they are kept elsewhere.

    Args:
        path: The file; made if there is none.

    Raises:
        OSError: It can't be opened, or what a killed writer left unfinished not be cut off.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = AppendFile(path)
        try:
            self._scan = scanned(self._file.fd)
            if self._scan.whole_bytes < self._file.size_bytes:
                self._file.cut(self._scan.whole_bytes)
        except OSError:
            self._file.close()
            raise

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return self._file.size_bytes

    def left_over(self) -> tuple[list[SampleChunk], int]:
        """The chunks that were in it when it was opened, and how many more are damaged."""
        chunks, damaged_count = [], len(self._scan.damaged_offsets)
        for frame in self._scan.frames:
            try:
                chunks.append(decoded_chunk(read_payload(self._file.fd, frame) or b""))
            except StoreError:
                damaged_count += 1
        return chunks, damaged_count

    def append(self, frame: bytes) -> None:
        """Add a frame.

        Raises:
            OSError: It can't be written; nothing of it is kept.
        """
        if self._file.spoiled:
            self.replace()
        self._file.append(frame)

    def replace(self) -> None:
        """Begin anew; whoever reads the old file now still finds all of it.

        Raises:
            OSError: There is no new one; the old one stays.
        """
        fresh_path = self._path.with_name(f"{self._path.name}.new")
        fresh_path.unlink(missing_ok=True)
        fresh = AppendFile(fresh_path, is_new=True)
        try:
            fresh_path.rename(self._path)
        except OSError:
            fresh.close()
            raise
        self._file.close()
        self._file = fresh
        self._file.path = self._path

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def chunk_frame(chunk: SampleChunk, *, quick: bool) -> tuple[bytes, tuple[int, int]]:
    """A chunk as a frame, made quickly or small, and its first and last Unix time."""
    begin_ns, end_ns = span_ns = chunk.span_ns()
    payload = encoded_chunk(chunk, quick=quick)
    frame = encoded_frame(FrameKind.SAMPLES, payload, begin_unix_ns=begin_ns, end_unix_ns=end_ns)
    return frame, span_ns
