"""Builds the trace events of a simulated rank's step: launches, kernels, annotations."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from chopperd.model.arrays import Int64s
from chopperd.model.kinds import KernelClass
from chopperd.simulation.job import RankStep
from chopperd.simulation.program import Block, Kernel, Program, Stream, Thread
from chopperd.simulation.template import (
    Argument,
    Count,
    Id,
    Moment,
    RankProcess,
    StepTemplate,
    TemplateBuilder,
)

#: Length of a launch call; the operator around it begins and ends this long before and after.
_CALL_NS: Final = 6_000
_OP_BEFORE_NS: Final = 12_000
_OP_AFTER_NS: Final = 10_000

_LAUNCH: Final = {
    ("cuda", KernelClass.COMM): ("cudaLaunchKernelExC", 430),
    ("cuda", KernelClass.GEMM): ("cudaLaunchKernelExC", 430),
    ("cuda", KernelClass.MEMCPY): ("cudaMemcpyAsync", 41),
    ("rocm", KernelClass.COMM): ("hipExtLaunchKernel", 62),
    ("rocm", KernelClass.GEMM): ("hipExtModuleLaunchKernel", 65),
    ("rocm", KernelClass.MEMCPY): ("hipMemcpyWithStream", 153),
}
_PLAIN_LAUNCH: Final = {"cuda": ("cudaLaunchKernel", 211), "rocm": ("hipLaunchKernel", 107)}
_COPIED_BYTES: Final = {"Memcpy HtoD": 262_144, "Memcpy DtoH": 4}

_COLLECTIVES: Final = {
    "c10d::_allgather_base_": ("_allgather_base", "nccl:_all_gather_base"),
    "c10d::_reduce_scatter_base_": ("_reduce_scatter_base", "nccl:_reduce_scatter_base"),
    "c10d::allreduce_": ("allreduce", "nccl:all_reduce"),
}
_UNIT_ELEMENTS: Final = 872_415_232


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeColumns:
    """Positions of each kind of time in the one column that fills a template."""

    kernels: int
    blocks: int

    def launch(self, kernel: int, offset_ns: int = 0) -> Moment:
        """Return the moment when a kernel's launch call starts."""
        return Moment(kernel, offset_ns)

    def start(self, kernel: int, offset_ns: int = 0) -> Moment:
        """Return the moment when a kernel starts on the device."""
        return Moment(self.kernels + kernel, offset_ns)

    def end(self, kernel: int, offset_ns: int = 0) -> Moment:
        """Return the moment when a kernel ends on the device."""
        return Moment(2 * self.kernels + kernel, offset_ns)

    def came(self, block: int, offset_ns: int = 0) -> Moment:
        """Return the moment when the host reached a block, before any wait."""
        return Moment(3 * self.kernels + block, offset_ns)

    def released(self, block: int, offset_ns: int = 0) -> Moment:
        """Return the moment when the rate limiter let the host go on to a block."""
        return Moment(3 * self.kernels + self.blocks + block, offset_ns)

    def named(self, which: int, offset_ns: int = 0) -> Moment:
        """Return one of `HOST_START`, `LOADED`, `HOST_END`, `STALL_SYNCED`, `STALL_END`."""
        return Moment(3 * self.kernels + 2 * self.blocks + which, offset_ns)


HOST_START, LOADED, HOST_END, STALL_SYNCED, STALL_END = range(5)


def time_column(step: RankStep, rank: int) -> Int64s:
    """Return the times of a rank's step in one column, in the order of `TimeColumns`."""
    timing = step.timing
    named = (
        timing.host_start_ns[rank],
        timing.host_start_ns[rank] + timing.loader_ns[rank],
        timing.host_end_ns[rank],
        timing.stall_synced_ns[rank],
        timing.stall_end_ns[rank],
    )
    return np.concatenate(
        (
            step.launch_ns,
            step.start_ns,
            step.end_ns,
            timing.waited_from_ns[:, rank],
            timing.released_ns[:, rank],
            np.array(named),
        )
    )


@dataclass(slots=True)
class StepEvents:
    """Builds the template of a rank's steps."""

    program: Program
    process: RankProcess
    builder: TemplateBuilder = field(default_factory=TemplateBuilder)

    @property
    def times(self) -> TimeColumns:
        """The positions of times in the step's time column."""
        return TimeColumns(kernels=len(self.program.kernels), blocks=len(self.program.blocks))

    def annotate(
        self, name: str, begin: Moment, end: Moment, thread: Thread, *, numbered: bool = False
    ) -> Id:
        """Add a user annotation; return its external id."""
        return self._on_host("user_annotation", name, (begin, end), thread, numbered=numbered)

    def operator(self, name: str, begin: Moment, end: Moment, thread: Thread) -> Id:
        """Add an operator; return its external id."""
        return self._on_host("cpu_op", name, (begin, end), thread)

    def runtime_call(
        self, name: str, number: int, span: tuple[Moment, Moment], thread: Thread
    ) -> None:
        """Add a runtime call that launches nothing."""
        correlation = self.builder.new_id()
        kind = "cbid" if self.process.runtime == "cuda" else "cid"
        arguments: dict[str, Argument] = {kind: number, "correlation": correlation}
        row = self.process.host(thread)
        self.builder.complete("cuda_runtime", name, row, span, arguments)

    def launches(self) -> None:
        """Add each kernel with its launch, the operator around it, and the arrow between them."""
        for index, kernel in enumerate(self.program.kernels):
            block = self.program.blocks[kernel.block]
            external = self._operators(index, kernel, block)
            correlation = self.builder.new_id()
            self._launch(index, kernel, block, external, correlation)
            self._record(index, kernel, block, external, correlation)

    def _operators(self, index: int, kernel: Kernel, block: Block) -> Id:
        launch = self.times.launch
        op = kernel.recipe.op
        if not block.collective:
            span = launch(index, -_OP_BEFORE_NS), launch(index, _OP_AFTER_NS)
            return self.operator(op, *span, block.thread)
        collective, annotation = _COLLECTIVES[op]
        external = self.operator(op, launch(index, -32_000), launch(index, 18_000), block.thread)
        span = launch(index, -26_000), launch(index, 16_000)
        self._on_host(
            "cpu_op",
            "record_param_comms",
            span,
            block.thread,
            extra=_collective_arguments(kernel, collective) | {"Seq": self._seq(index)},
        )
        self.annotate(annotation, launch(index, -14_000), launch(index, 14_000), block.thread)
        return external

    def _launch(
        self, index: int, kernel: Kernel, block: Block, external: Id, correlation: Id
    ) -> None:
        runtime, recipe = self.process.runtime, kernel.recipe
        name, number = _LAUNCH.get((runtime, recipe.kernel_class), _PLAIN_LAUNCH[runtime])
        arguments: dict[str, Argument] = {"External id": external}
        if runtime == "cuda":
            arguments |= {"cbid": number, "correlation": correlation}
        elif recipe.kernel_class is KernelClass.MEMCPY:
            copied = _COPIED_BYTES[kernel.name[:11]]
            arguments |= {"cid": number, "correlation": correlation, "bytes": str(copied)}
        else:
            arguments |= {"kernel": kernel.name, "cid": number, "correlation": correlation}
            arguments |= {"grid": list(recipe.grid), "block": list(recipe.block)}
        row = self.process.host(block.thread)
        span = self.times.launch(index), self.times.launch(index, _CALL_NS)
        self.builder.complete("cuda_runtime", name, row, span, arguments)
        self.builder.flow("s", row, span[0], correlation)

    def _record(
        self, index: int, kernel: Kernel, block: Block, external: Id, correlation: Id
    ) -> None:
        row = self.process.on_device(block.stream)
        span = self.times.start(index), self.times.end(index)
        is_copy = kernel.recipe.kernel_class is KernelClass.MEMCPY
        arguments: dict[str, Argument] = {"External id": external}
        if self.process.runtime == "cuda":
            arguments |= {} if is_copy else {"queued": 0}
            arguments |= {"device": row.pid, "context": 1}
        else:
            arguments |= {"device": row.pid}
        arguments |= {"stream": row.tid, "correlation": correlation}
        if is_copy:
            arguments["bytes"] = _COPIED_BYTES[kernel.name[:11]]
        else:
            arguments |= _dimensions(kernel, self.process)
        if block.collective:
            collective, _ = _COLLECTIVES[kernel.recipe.op]
            arguments |= _collective_arguments(kernel, collective) | {"Seq": self._seq(index)}
        category = "gpu_memcpy" if is_copy else "kernel"
        self.builder.complete(category, kernel.name, row, span, arguments)
        self.builder.flow("f", row, span[0], correlation)

    def _seq(self, kernel: int) -> Count:
        """Return a collective's number in its process group, as torch 2.12 and later write it."""
        every = [self.program.blocks[each.block].collective for each in self.program.kernels]
        return Count(sum(every[:kernel]), per_step=sum(every))

    def on_device(
        self, name: str, stream: Stream, external: Id, kernels: tuple[int, int], *, numbered: bool
    ) -> None:
        """Add an annotation's device row, from 1 ns before a kernel to 1 ns after another."""
        span = self.times.start(kernels[0], -1), self.times.end(kernels[1], 1)
        self.builder.complete(
            "gpu_user_annotation",
            name,
            self.process.on_device(stream),
            span,
            {"External id": external},
            numbered=numbered,
        )

    def build(self) -> StepTemplate:
        """Build the template of all events added."""
        return self.builder.build()

    def _on_host(
        self,
        category: str,
        name: str,
        span: tuple[Moment, Moment],
        thread: Thread,
        *,
        numbered: bool = False,
        extra: dict[str, Argument] | None = None,
    ) -> Id:
        external = self.builder.new_id()
        arguments: dict[str, Argument] = {"External id": external, "Record function id": 0}
        arguments |= extra or {}
        arguments["Ev Idx"] = external
        row = self.process.host(thread)
        self.builder.complete(category, name, row, span, arguments, numbered=numbered)
        return external


def _dimensions(kernel: Kernel, process: RankProcess) -> dict[str, Argument]:
    if process.runtime == "rocm":
        return {"kind": "Dispatch Kernel"}
    recipe = kernel.recipe
    return {
        "registers per thread": 168 if recipe.kernel_class is KernelClass.GEMM else 40,
        "shared memory": 213_504 if recipe.kernel_class is KernelClass.GEMM else 0,
        "grid": list(recipe.grid),
        "block": list(recipe.block),
    }


def _collective_arguments(kernel: Kernel, collective: str) -> dict[str, Argument]:
    total = _UNIT_ELEMENTS if kernel.unit else _UNIT_ELEMENTS // 2
    share = total // 8
    sizes = {
        "_allgather_base": (share, total),
        "_reduce_scatter_base": (total, share),
        "allreduce": (1, 1),
    }
    sent, received = sizes[collective]
    return {
        "Collective name": collective,
        "In msg nelems": sent,
        "Out msg nelems": received,
        "Group size": 8,
        "dtype": "Float" if collective == "allreduce" else "BFloat16",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
    }
