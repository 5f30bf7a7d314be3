"""Scans mutated documents with a library: what a sanitizer is to watch."""

import random
import sys
from pathlib import Path

from chopperd.traces.native.scanner import Scanner, ScannerLibrary, TextBuffer
from tests.mutations import mutated

DONE = "scanned"
_DOCUMENTS = 3000


def main() -> None:
    """Scan each document whole and in pieces, as data that end and data that go on."""
    scanner, rng = Scanner(ScannerLibrary(Path(sys.argv[1]))), random.Random(11)
    for _ in range(_DOCUMENTS):
        text = mutated(rng)
        text = text[text.find(b"[") + 1 :]
        for final in (False, True):
            scanner.scan(TextBuffer(text), final=final)
            part = TextBuffer(text[: rng.randrange(len(text) + 1)])
            scanner.scan(part, final=final, limit=rng.randrange(60))
    print(DONE)


if __name__ == "__main__":
    main()
