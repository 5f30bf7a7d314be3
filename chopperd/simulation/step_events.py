"""Builds the trace events of a simulated rank's step: launches, kernels, annotations."""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from chopperd.model.arrays import Int64s
from chopperd.model.kinds import KernelClass
from chopperd.simulation.job import RankStep
from chopperd.simulation.program import Block, Kernel, Program, Stream, Thread
from chopperd.simulation.template import Argument, Count, Id, Moment, RankProcess, TemplateBuilder
from chopperd.units import NS_PER_US

#: Length of a launch call; the operator around it begins and ends this long before and after.
_CALL_US: Final = 6
_OP_BEFORE_US: Final = 12
_OP_AFTER_US: Final = 10

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
#: Parameters of a layer.
UNIT_ELEMENTS: Final = 872_415_232


#: Two moments between which something lasts.
Span: TypeAlias = tuple[Moment, Moment]

HOST_START, LOADED, HOST_END, STALL_SYNCED, STALL_END = range(5)


def time_column(step: RankStep, rank: int) -> Int64s:
    """Return the times of a rank's step in one column, in the order of `StepEvents`' moments."""
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

    def launch(self, kernel: int, offset_us: int = 0) -> Moment:
        """Return the moment when a kernel's launch call starts."""
        return Moment(kernel, offset_us * NS_PER_US)

    def start(self, kernel: int, offset_ns: int = 0) -> Moment:
        """Return the moment when a kernel starts on the device."""
        return Moment(len(self.program.kernels) + kernel, offset_ns)

    def end(self, kernel: int, offset_ns: int = 0) -> Moment:
        """Return the moment when a kernel ends on the device."""
        return Moment(2 * len(self.program.kernels) + kernel, offset_ns)

    def came(self, block: int, offset_us: int = 0) -> Moment:
        """Return the moment when the host reached a block, before any wait."""
        return Moment(3 * len(self.program.kernels) + block, offset_us * NS_PER_US)

    def released(self, block: int, offset_us: int = 0) -> Moment:
        """Return the moment when the rate limiter let the host go on to a block."""
        return self.came(len(self.program.blocks) + block, offset_us)

    def named(self, which: int, offset_us: int = 0) -> Moment:
        """Return one of `HOST_START`, `LOADED`, `HOST_END`, `STALL_SYNCED`, `STALL_END`."""
        return self.released(len(self.program.blocks) + which, offset_us)

    def around(self, kernel: int, from_us: int, to_us: int) -> Span:
        """Return the span between two moments about the launch of a kernel."""
        return self.launch(kernel, from_us), self.launch(kernel, to_us)

    def annotate(self, name: str, span: Span, thread: Thread, *, numbered: bool = False) -> Id:
        """Add a user annotation; return its external id."""
        return self._on_host("user_annotation", name, span, thread, numbered=numbered)

    def operator(
        self, name: str, span: Span, thread: Thread, extra: dict[str, Argument] | None = None
    ) -> Id:
        """Add an operator; return its external id."""
        return self._on_host("cpu_op", name, span, thread, extra=extra)

    def runtime_call(self, name: str, number: int, span: Span, thread: Thread) -> None:
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
        op, thread = kernel.recipe.op, block.thread
        if not block.collective:
            return self.operator(op, self.around(index, -_OP_BEFORE_US, _OP_AFTER_US), thread)
        external = self.operator(op, self.around(index, -32, 18), thread)
        span, extra = self.around(index, -26, 16), self._collective_arguments(index, kernel)
        self.operator("record_param_comms", span, thread, extra)
        self.annotate(_COLLECTIVES[op][1], self.around(index, -14, 14), thread)
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
        span = self.around(index, 0, _CALL_US)
        self.builder.complete("cuda_runtime", name, row, span, arguments)
        self.builder.flow("s", row, span[0], correlation)

    def _record(
        self, index: int, kernel: Kernel, block: Block, external: Id, correlation: Id
    ) -> None:
        row = self.process.on_device(block.stream)
        span = self.start(index), self.end(index)
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
            arguments |= self._collective_arguments(index, kernel)
        category = "gpu_memcpy" if is_copy else "kernel"
        self.builder.complete(category, kernel.name, row, span, arguments)
        self.builder.flow("f", row, span[0], correlation)

    def _collective_arguments(self, index: int, kernel: Kernel) -> dict[str, Argument]:
        """Return a collective's arguments; "Seq" as torch 2.12 and later write it."""
        every = [self.program.blocks[each.block].collective for each in self.program.kernels]
        seq = Count(sum(every[:index]), per_step=sum(every))
        collective = _COLLECTIVES[kernel.recipe.op][0]
        total = UNIT_ELEMENTS if kernel.unit else UNIT_ELEMENTS // 2
        sizes = {
            "_allgather_base": (total // 8, total),
            "_reduce_scatter_base": (total, total // 8),
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
            "Seq": seq,
        }

    def on_device(
        self, name: str, stream: Stream, external: Id, kernels: tuple[int, int], *, numbered: bool
    ) -> None:
        """Add an annotation's device row, from 1 ns before a kernel to 1 ns after another."""
        span = self.start(kernels[0], -1), self.end(kernels[1], 1)
        self.builder.complete(
            "gpu_user_annotation",
            name,
            self.process.on_device(stream),
            span,
            {"External id": external},
            numbered=numbered,
        )

    def _on_host(
        self,
        category: str,
        name: str,
        span: Span,
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
