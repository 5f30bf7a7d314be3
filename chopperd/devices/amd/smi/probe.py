"""What one GPU answers, metric by metric and call by call, and what each costs: for people."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from chopperd.devices.amd.probe import Asker, block_probes
from chopperd.devices.amd.smi import numbers
from chopperd.devices.amd.smi.library import Library
from chopperd.devices.amd.smi.metrics import SmiSource
from chopperd.model.devices import FieldProbe


@dataclass(frozen=True, slots=True, kw_only=True)
class Prober:
    """Asks one GPU for everything that it might answer, into buffers of its own.

    Attributes:
        library: Answers.
        handle: Of the GPU.
        source: Its block, for nobody else.
        asker: Times the calls.
    """

    library: Library
    handle: int
    source: SmiSource
    asker: Asker

    def all(self) -> Iterator[FieldProbe]:
        """Metrics of the block, then what has a call of its own.

        Raises:
            DeviceLostError: The GPU is gone.
        """
        yield from block_probes(self.source, self.asker)
        for name, _bounds, questions in (*numbers.STAND_INS, *numbers.BESIDE):
            for question in questions:
                yield self._own(name, question, self._used(name, question))
        for name, _bounds, question in numbers.FIXED:
            probe = self._own(name, question, used=False)
            yield replace(probe, used=probe.answers)

    def _used(self, name: str, question: numbers.Question) -> bool:
        suffix = f".{question.member}" if question.source else ""
        return self.asker.faults.choices.kept.get(name) == question.call + suffix

    def _own(self, name: str, question: numbers.Question, used: bool) -> FieldProbe:
        base = FieldProbe(
            operation=f"{question.call}{f'.{question.member}' if question.member else ''}",
            feeds=name,
            source=question.source,
            used=used,
            unit=question.unit,
        )
        try:
            number = numbers.SmiNumber(self.library, self.handle, question)
        except LookupError as error:
            return replace(base, used=False, error=f"this version has no {error}")
        return self.asker.asked(base, number.raw)
