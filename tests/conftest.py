"""Fixtures that every layer of tests shares."""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools import ROOT

# Before anything imports it: its assertions are to say what they saw.
pytest.register_assert_rewrite("chopperd.testing")

SHARED = Path(os.environ.get("CHOPPERD_SHARED", ROOT.parent / "shared"))


#: What would change how programs under test behave, or how soon they start.
_FOREIGN = ("NOTIFY_SOCKET", "WATCHDOG_", "PYTHONDONTWRITEBYTECODE", "COLUMNS", "FORCE_COLOR")


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives to the end: modules and the tests themselves.

    Tests that look for what is left behind collect again and again.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def like_a_new_shell() -> None:
    """What is tested finds the same whoever starts the tests, and from where.

    They may be a background job or under `nohup` (with signals ignored, which their children would
    inherit), run by a service manager, or have settings of an agent of their own; the code to run
    is that of this tree.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # still ignored here, and not inherited
    for name in tuple(os.environ):
        if name.startswith(("CHOPPERD_", *_FOREIGN)):
            del os.environ[name]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [folder for folder in given if Path(folder).is_absolute()]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *others])


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public inputs (traces, cases); its absence is a failure in CI."""
    if not SHARED.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"the public inputs are missing: {SHARED}")
        pytest.skip("the public inputs are not beside this checkout")
    return SHARED


@pytest.fixture(autouse=True)
def no_stray_threads() -> Iterator[None]:
    """Every test leaves no thread of ours behind."""
    yield
    stray = [t.name for t in threading.enumerate() if t.name.startswith("chopperd-")]
    assert not stray, f"threads left behind: {stray}"
