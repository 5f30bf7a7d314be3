"""What is asked in place of a store that can't be had."""

from typing import NoReturn

from chopperd.errors import StoreError


class AbsentStore:
    """Knows no steps and no drops (`model.services.StepSource`, `DropSource`), and says why.

    Args:
        trouble: Why there is no store, for people.
    """

    def __init__(self, trouble: str) -> None:
        self._trouble = trouble

    def _refuse(self, *_asked: object, **_for: object) -> NoReturn:
        raise StoreError(f"there is no store: {self._trouble}")

    jobs = steps = step = kernels = latest_document = traces = trace = drops = _refuse
