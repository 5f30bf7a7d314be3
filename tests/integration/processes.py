"""What a test asks the system about processes."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


def open_files_count() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
