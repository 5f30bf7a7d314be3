"""The load of `chopperd selftest`: matrix products on zeros and on random data, by turns.

Run as a script, by any Python that has torch: it imports the standard library and torch only,
nothing of chopperd. It prints one JSON object a line (`protocol.py` reads them); times are of
CLOCK_MONOTONIC in ns. It changes no setting of the device.
"""

import argparse
import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Final, NamedTuple

_NS_PER_S: Final = 1_000_000_000
#: Length of a batch of products, which is timed as one so that launch costs do not show.
_BATCH_S: Final = 0.05
_LARGEST: Final = 8192
_MULTIPLE: Final = 512
#: Of the free memory, three matrices of two bytes an element take at most this share.
_MEMORY_RATIO: Final = 0.125
_CPU_SIZE: Final = 256


class _Products:
    """Products of each operand with itself on one device, into one preallocated matrix."""

    def __init__(
        self, torch: ModuleType, operands: dict[str, object], finish: Callable[[], object]
    ) -> None:
        self._operands = operands
        self._multiply = torch.matmul
        self._result = torch.empty_like(operands["zeros"])
        self.finish = finish  # waits until all started products are done

    def multiply(self, operand: str, count: int) -> None:
        """Start this many products of this operand, without waiting."""
        matrix = self._operands[operand]
        for _ in range(count):
            self._multiply(matrix, matrix, out=self._result)


class _Options(NamedTuple):
    """The command line options, as `protocol.LoadPlan.to_argv` writes them."""

    device: str
    uuid: str | None
    rounds: int
    warm_up_s: float
    seconds: float
    pulses: int
    pulse_s: float


def main(argv: list[str]) -> int:
    """Run the load and print its messages; return the exit status (3: no load)."""
    options = _options(argv)
    try:
        products = _open(options)
    except (ImportError, RuntimeError, LookupError, OSError) as error:
        _say(event="failed", reason=" ".join(f"{type(error).__name__}: {error}".split()))
        return 3
    batch = _batch_count(products)
    for number in range(options.rounds):
        for operand in ("zeros", "random"):
            _phase(products, operand, number, batch, options)
    _pulses(products, batch, options)
    _say(event="done")
    return 0


def _options(argv: list[str]) -> _Options:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--uuid")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm-up-s", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--pulses", type=int, default=12)
    parser.add_argument("--pulse-s", type=float, default=0.3)
    return _Options(**vars(parser.parse_args(argv)))


def _phase(products: _Products, operand: str, number: int, batch: int, options: _Options) -> None:
    """Warm up, then time batches; print a message before and after."""
    _say(event="begin", operand=operand, round=number)
    _run(products, operand, batch, options.warm_up_s)
    edges = _run(products, operand, batch, options.seconds)
    _say(event="phase", operand=operand, round=number, products_a_batch=batch, edge_mono_ns=edges)


def _run(products: _Products, operand: str, batch: int, seconds: float) -> list[int]:
    """Run products for this many seconds; return the first start and each batch's end, ns."""
    edges = [time.monotonic_ns()]
    until_ns = edges[0] + int(seconds * _NS_PER_S)
    while edges[-1] < until_ns:
        products.multiply(operand, batch)
        products.finish()
        edges.append(time.monotonic_ns())
    return edges


def _pulses(products: _Products, batch: int, options: _Options) -> None:
    """Switch the load on and off, so that the lag of clock and power shows; print the times."""
    _say(event="begin", operand="pulses", round=0)
    starts, ends = [], []
    for number in range(options.pulses):
        # Uneven, so that a lag of one whole period can't be mistaken for none.
        length_s = options.pulse_s * (1 + 0.3 * (number % 3))
        edges = _run(products, "random", max(1, batch // 5), length_s)
        starts.append(edges[0])
        ends.append(edges[-1])
        time.sleep(length_s)
    _say(event="pulses", start_mono_ns=starts, end_mono_ns=ends)


def _batch_count(products: _Products) -> int:
    """Measure how many products take about `_BATCH_S`."""
    for operand in ("zeros", "random"):  # the first ones set the library up, which takes long
        products.multiply(operand, 3)
        products.finish()
    count = 1
    while True:
        start_ns = time.monotonic_ns()
        products.multiply("random", count)
        products.finish()
        took_s = (time.monotonic_ns() - start_ns) / _NS_PER_S
        if took_s >= _BATCH_S or count >= 4096:
            return max(1, round(count * min(1.0, _BATCH_S / took_s)))
        count *= 2


def _open(options: _Options) -> _Products:
    """Prepare the products on the requested device, and print which device it is.

    Raises:
        ImportError: There is no torch.
        LookupError: torch does not see the GPU.
        RuntimeError: torch can't use the device.
    """
    torch = importlib.import_module("torch")
    return _cpu(torch) if options.device == "cpu" else _cuda(torch, options.uuid)


def _cpu(torch: ModuleType) -> _Products:
    torch.set_num_threads(1)
    size, version = _CPU_SIZE, str(torch.__version__)
    _say(event="ready", device="cpu", torch=version, dtype="float32", size=size)
    operands = {"zeros": torch.zeros(size, size), "random": torch.randn(size, size)}
    return _Products(torch, operands, finish=lambda: None)


def _cuda(torch: ModuleType, uuid: str | None) -> _Products:
    cuda = torch.cuda
    if not cuda.is_available():
        raise LookupError("torch sees no CUDA device")
    index = _index_of(uuid, _uuids(torch))
    cuda.set_device(index)
    free_bytes, _ = cuda.mem_get_info()
    size, version = _size(free_bytes), str(torch.__version__)
    operands = {
        name: make(size, size, dtype=torch.bfloat16, device="cuda")
        for name, make in (("zeros", torch.zeros), ("random", torch.randn))
    }
    device = cuda.get_device_name(index)
    _say(event="ready", device=device, torch=version, dtype="bfloat16", size=size)
    return _Products(torch, operands, finish=cuda.synchronize)


def _uuids(torch: ModuleType) -> list[str | None]:
    """Return the UUIDs of torch's devices; None for each whose UUID torch does not report."""
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    uuids = (getattr(device, "uuid", None) for device in devices)
    return [None if uuid is None else str(uuid) for uuid in uuids]


def _index_of(uuid: str | None, found: list[str | None]) -> int:
    """Return the index of torch's device with this driver UUID; 0 where no UUID is given.

    torch writes a UUID without the driver's "GPU-". Where it gives none, the only device is taken.

    Raises:
        LookupError: No device of torch has this UUID.
    """
    if uuid is None or found == [None]:
        return 0
    wanted = uuid.lower().removeprefix("gpu-")
    for index, each in enumerate(found):
        if each is not None and each.lower().removeprefix("gpu-") == wanted:
            return index
    raise LookupError(f"torch does not see {uuid}: CUDA_VISIBLE_DEVICES may hide it ({found})")


def _size(free_bytes: int) -> int:
    """Return the rows of square matrices that leave most of the memory free."""
    fits = int((free_bytes * _MEMORY_RATIO / (3 * 2)) ** 0.5)
    return max(_MULTIPLE, min(_LARGEST, fits // _MULTIPLE * _MULTIPLE))


def _say(**values: object) -> None:
    """Print one line of the protocol."""
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # whoever asked has gone: so do we
        sys.exit(main(sys.argv[1:]))
