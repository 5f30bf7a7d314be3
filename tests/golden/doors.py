"""The only module here that imports the package and test helpers: moves of modules touch this one.

Each function gives outputs that no command prints, as text by name.
"""

import json
import pkgutil
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import chopperd
from chopperd.api.app import build_api
from chopperd.cli import main
from chopperd.report.forms.schema import encode_schema
from chopperd.store.captures.capture_store import CaptureStore
from chopperd.store.disk import DiskLimits
from chopperd.store.recorder.writer import FlightRecorder
from chopperd.store.samples.files import read_samples, write_samples
from tests.exposition import rendered
from tests.fakes.api_services import FakeAgent, step_row, trace_entry
from tests.fakes.clock import ScriptedClock
from tests.fakes.recorded import Feed
from tests.fakes.samples import recording
from tests.fakes.snapshots import full_snapshot
from tests.integration.api.asking import ask
from tests.scrape_shape import whole_shape
from tests.unit.report.documents import eight_gpus
from tests.unit.store.captures.examples import LIMITS, analysed, entry, file_one

__all__ = ["import_all", "main", "version"]

#: Programs, compiled parts, and what tests of back ends need pytest for.
_NOT_IMPORTED = re.compile(r"__main__|\._(native|scanner)$|\.testing")
_PATH_VALUES = {
    "gpu": "0",
    "job": "train",
    "step": "4",
    "trace": "0123456789abcdef",
    "file": "swagger-ui.css",
    "asset": "palette.css",
}


def version() -> str:
    """The package's version, which outputs contain."""
    return chopperd.__version__


def import_all() -> None:
    """Import every module once, so that each forked command starts at once."""
    import_module("pyarrow.parquet")
    for module in pkgutil.walk_packages(chopperd.__path__, "chopperd."):
        if not _NOT_IMPORTED.search(module.name):
            import_module(module.name)


def metrics() -> Mapping[str, str]:
    """The shape of a scrape, and a scrape of a fixed snapshot in both formats."""
    snapshot = full_snapshot(hung=True)
    openmetrics = "application/openmetrics-text; version=1.0.0"
    return {
        "metrics/shape": "\n".join(whole_shape()),
        "metrics/text": rendered(snapshot),
        "metrics/openmetrics": rendered(snapshot, accept=openmetrics),
    }


def schemas() -> Mapping[str, str]:
    """The report's schema, as it is generated and as it is installed."""
    installed = Path(chopperd.__path__[0], "report", "report.schema.json")
    return {"schema/generated": encode_schema().decode(), "schema/installed": installed.read_text()}


def api() -> Mapping[str, str]:
    """`/openapi.json`, and what each GET path of it answers over a small agent."""
    agent = FakeAgent()
    agent.steps.rows = [step_row(4), step_row(3), step_row(3, job="other", run=None)]
    agent.steps.document = eight_gpus()
    agent.steps.entries = [trace_entry("0123456789abcdef")]
    agent.samples.held = recording(2)
    app = build_api(agent.services())
    document = ask(app, "GET", "/openapi.json", uid=0).json()
    found = {"api/openapi.json": json.dumps(document, indent=1)}
    for path, operations in document["paths"].items():
        if "get" in operations and not path.endswith("/stream"):
            answer = ask(app, "GET", path.format(**_PATH_VALUES), uid=0)
            kind = answer.headers.get("content-type", "")
            body = json.dumps(answer.json(), indent=1) if "json" in kind else answer.text
            found[f"api{path}"] = f"{body}\n{answer.status_code} {kind}\n"
    return found


def rewritten_samples(source: Path, folder: Path) -> Mapping[str, Path]:
    """Files of samples as this package writes them, from one that was written by hand."""
    samples = read_samples(source)
    made = {f"samples/{form}": folder / f"rewritten.{form}" for form in ("csv", "parquet")}
    for path in made.values():
        write_samples(path, samples)
    return made


def recorder_folder(folder: Path) -> Path:
    """A flight recorder's folder: 150 seconds of two GPUs, and what is in the journal yet."""
    clock = ScriptedClock(mono_ns=5_000_000_000, unix_ns=1_800_000_005_000_000_000)
    limits = DiskLimits(max_bytes=2**30, max_days=7, min_free_ratio=0)
    recorder = FlightRecorder(folder, limits, clock)
    Feed(recorder, clock).seconds(150)
    return folder


def store_file(path: Path) -> Path:
    """The store's file with one trace, its capture and the capture's document."""
    store = CaptureStore(path, limits=LIMITS, clock=ScriptedClock())
    store.put_trace(entry("first"))
    capture, _ = file_one(store, analysed("first"))
    store.put_document(capture.id, eight_gpus())
    store.close()
    return path
