"""One training step of a job as a program: blocks of kernels in the order the host launches them.

A block is the unit of time and clock: kernels that run back to back on one stream at one clock.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from chopperd.model.kinds import KernelClass
from chopperd.simulation.kernels import RECIPES, Recipe
from chopperd.simulation.presets import JobModel

#: Pause of the stream between kernels of a block.
KERNEL_GAP_NS: Final = 1_500
#: The host needs this long for each launch, and this long more for an FSDP hook.
LAUNCH_NS: Final = 42_000
HOOK_NS: Final = 240_000

_US: Final = 1_000


class Thread(StrEnum):
    """The host thread that launches a kernel."""

    MAIN = "main"
    AUTOGRAD = "autograd"


class Stream(StrEnum):
    """The stream that a block runs on."""

    COMPUTE = "compute"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One device record of a step."""

    recipe: Recipe
    name: str  # as the trace shows it
    block: int  # index of its block
    clocked_ns: float  # the part of its time that scales with the clock, at the highest clock
    fixed_ns: float  # the part that does not (for a collective: the transfer)
    unit: str | None  # FSDP unit that it serves ("layers.3"; "" for the root); None outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Kernels that run back to back on one stream, at one clock."""

    stream: Stream
    thread: Thread  # that launches it
    first: int  # index of its first kernel
    count: int  # number of kernels
    clocked_ns: float  # sums over its kernels
    fixed_ns: float
    rest_ns: float = 0.0  # the pauses between them
    activity: float  # mean switching activity, by time
    after: tuple[int, ...]  # blocks that must end before it, besides the one before on its stream
    host_ns: float  # time that the host spends up to and including the last launch
    #: Block whose end the host awaits before it goes on to this one (FSDPv1's rate limiter).
    waits_for_end: int | None = None
    may_stall: bool = False  # whether the host asks the allocator for a large block (FSDPv1)

    @property
    def collective(self) -> bool:
        """Whether the block is a collective, in which all ranks take part."""
        return self.stream is not Stream.COMPUTE

    @property
    def nominal_ns(self) -> float:
        """The block's length at the highest clock with no collective in flight, ns."""
        return self.clocked_ns + self.fixed_ns + self.rest_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A run of blocks that a host annotation spans, as `[first, last]`."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One training step; blocks and kernels are in launch order."""

    job: JobModel
    blocks: tuple[Block, ...]
    kernels: tuple[Kernel, ...]
    sections: tuple[Section, ...]  # forward, backward of each FSDP unit, optimizer: for annotations


@dataclass(slots=True)
class _Builder:
    """Collects blocks in launch order."""

    job: JobModel
    blocks: list[Block] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    thread: Thread = Thread.MAIN

    @property
    def next(self) -> int:
        """The index that the next block gets."""
        return len(self.blocks)

    def compute(
        self, *work: tuple[str, float], after: tuple[int, ...] = (), unit: str | None = None
    ) -> int:
        """Add a compute block of (recipe, microseconds at the highest clock); return its index."""
        first = len(self.kernels)
        for key, length_us in work:
            self._kernel(key, length_us * _US * self.job.work_scale, unit)
        added = self.kernels[first:]
        lengths = [kernel.clocked_ns + kernel.fixed_ns for kernel in added]
        weighted = sum(
            kernel.recipe.activity * length for kernel, length in zip(added, lengths, strict=True)
        )
        self.blocks.append(
            Block(
                stream=Stream.COMPUTE,
                thread=self.thread,
                first=first,
                count=len(added),
                clocked_ns=sum(kernel.clocked_ns for kernel in added),
                fixed_ns=sum(kernel.fixed_ns for kernel in added),
                rest_ns=float(len(added) * KERNEL_GAP_NS),
                activity=weighted / sum(lengths),
                after=after,
                host_ns=float(len(added) * LAUNCH_NS),
            )
        )
        return self.next - 1

    def gather(
        self, layer: int, *after: int, limiter: int | None = None, length_us: float = 4_800.0
    ) -> int:
        """Add the all-gather of a layer's weights (-1: the root's); return its index."""
        unit = f"layers.{layer}" if layer >= 0 else ""
        return self.collective(
            "all_gather", length_us, Stream.ALL_GATHER, after=after, unit=unit, limiter=limiter
        )

    def collective(
        self,
        key: str,
        length_us: float,
        stream: Stream = Stream.REDUCE_SCATTER,
        *,
        after: tuple[int, ...],
        unit: str,
        limiter: int | None = None,
    ) -> int:
        """Add a collective that transfers for so long once all ranks arrived; return its index."""
        first = len(self.kernels)
        self._kernel(key, length_us * _US * self.job.work_scale, unit)
        is_v1_gather = self.job.framework == "fsdp1" and key == "all_gather"
        self.blocks.append(
            Block(
                stream=stream,
                thread=self.thread,
                first=first,
                count=1,
                clocked_ns=0.0,
                fixed_ns=self.kernels[first].fixed_ns,
                activity=self.kernels[first].recipe.activity,
                after=after,
                host_ns=float(LAUNCH_NS + HOOK_NS),
                waits_for_end=limiter if is_v1_gather else None,
                may_stall=is_v1_gather and limiter is not None,
            )
        )
        return self.next - 1

    def section(self, name: str, first: int) -> None:
        """Name the blocks from `first` to the last one added."""
        self.sections.append(Section(name=name, first=first, last=self.next - 1))

    def _kernel(self, key: str, length_ns: float, unit: str | None) -> None:
        recipe = RECIPES[key]
        clocked = 0.0 if recipe.kernel_class is KernelClass.COMM else recipe.clocked
        self.kernels.append(
            Kernel(
                recipe=recipe,
                name=recipe.name(self.job.runtime),
                block=self.next,
                clocked_ns=clocked * length_ns,
                fixed_ns=(1 - clocked) * length_ns,
                unit=unit,
            )
        )


def build_program(job: JobModel) -> Program:
    """Build the job's step: batch, forward with prefetched all-gathers, backward, optimizer."""
    builder = _Builder(job=job)
    ends = _forward(builder)
    builder.thread = Thread.AUTOGRAD
    last_scatter = _backward(builder, ends)
    builder.thread = Thread.MAIN
    _optimizer(builder, last_scatter)
    return Program(
        job=job,
        blocks=tuple(builder.blocks),
        kernels=tuple(builder.kernels),
        sections=tuple(builder.sections),
    )


def _unpacked(job: JobModel, *work: tuple[str, float]) -> tuple[tuple[str, float], ...]:
    """Return the work after FSDPv2's copy out of the gathered buffer; FSDPv1 uses views."""
    return (("copy_out", 70.0), *work) if job.framework == "fsdp2" else work


def _packed(job: JobModel, *work: tuple[str, float]) -> tuple[tuple[str, float], ...]:
    """Return the work followed by FSDPv2's packing of gradients."""
    return (*work, ("chunk_cat", 90.0)) if job.framework == "fsdp2" else work


def _forward(builder: _Builder) -> list[int]:
    """Add the forward pass; return the index of each layer's last block, the root's first."""
    job = builder.job
    builder.compute(("h2d", 120.0))
    root = builder.gather(-1, length_us=2_600.0)
    gather = builder.gather(0)
    ends = [builder.compute(*_unpacked(job, ("embedding", 180.0)), after=(root,), unit="")]
    for layer in range(job.layer_count):
        first, unit = builder.next, f"layers.{layer}"
        wait = (gather,)
        if layer + 1 < job.layer_count:
            limiter = ends[-2] if layer > 0 else None
            gather = builder.gather(layer + 1, ends[-1], limiter=limiter)
        _forward_layer(builder, wait, unit)
        ends.append(builder.next - 1)
        builder.section(f"forward {unit}", first)
    first = builder.next
    head = builder.compute(("norm", 110.0), ("gemm_gate", 3_900.0), ("loss", 420.0), unit="")
    builder.section("head", first)
    return [*ends, head]


def _forward_layer(builder: _Builder, wait: tuple[int, ...], unit: str) -> None:
    attention_in = (("norm", 110.0), ("gemm_qkv", 1_450.0), ("rope", 140.0))
    builder.compute(*_unpacked(builder.job, *attention_in), after=wait, unit=unit)
    builder.compute(("attention", 1_500.0), ("gemm_out", 800.0), ("add", 90.0), unit=unit)
    builder.compute(("norm", 110.0), ("gemm_gate", 1_480.0), ("gemm_gate", 1_480.0), unit=unit)
    builder.compute(("silu_mul", 190.0), ("gemm_down", 1_500.0), ("add", 90.0), unit=unit)


def _backward(builder: _Builder, ends: list[int]) -> int:
    """Add the backward pass; return the index of its last reduce-scatter."""
    job, first = builder.job, builder.next
    gather = builder.gather(job.layer_count - 1, ends[-1])
    builder.compute(("loss_grad", 430.0), ("gemm_dgrad", 3_900.0), ("gemm_wgrad", 3_900.0), unit="")
    builder.section("backward head", first)
    scatter, layer_ends = -1, [builder.next - 1]
    for layer in reversed(range(job.layer_count)):
        first, wait = builder.next, (gather,)
        if layer > 0:
            limiter = layer_ends[-2] if len(layer_ends) > 1 else None
            gather = builder.gather(layer - 1, layer_ends[-1], limiter=limiter)
        unit = f"layers.{layer}"
        _backward_layer(builder, wait, unit)
        layer_ends.append(builder.next - 1)
        scatter = builder.collective("reduce_scatter", 5_600.0, after=(layer_ends[-1],), unit=unit)
        builder.section(f"backward {unit}", first)
    first = builder.next
    end = builder.compute(*_packed(job, ("embedding_grad", 300.0)), unit="")
    scatter = builder.collective("reduce_scatter", 3_200.0, after=(end, scatter), unit="")
    builder.section("backward root", first)
    return scatter


def _backward_layer(builder: _Builder, wait: tuple[int, ...], unit: str) -> None:
    gemms = (("gemm_dgrad", 1_480.0), ("gemm_wgrad", 1_500.0))
    first = (("add", 90.0), *gemms)
    builder.compute(*_unpacked(builder.job, *first), after=wait, unit=unit)
    builder.compute(("silu_grad", 260.0), *gemms, unit=unit)
    builder.compute(*gemms, ("norm_grad", 200.0), ("add", 90.0), unit=unit)
    builder.compute(
        ("gemm_dgrad", 800.0), ("gemm_wgrad", 820.0), ("attention_dot", 120.0), unit=unit
    )
    builder.compute(("attention_grad", 3_100.0), ("rope", 150.0), unit=unit)
    last = (("gemm_dgrad", 1_450.0), ("gemm_wgrad", 1_470.0), ("norm_grad", 200.0))
    builder.compute(*_packed(builder.job, *last), unit=unit)


def _optimizer(builder: _Builder, last_scatter: int) -> None:
    first = builder.next
    norm = builder.compute(*[("grad_norm", 60.0)] * 4, after=(last_scatter,))
    reduce = builder.collective("all_reduce", 90.0, after=(norm,), unit="norm")
    builder.compute(*[("grad_clip", 75.0)] * 4, after=(reduce,))
    builder.section("clip", first)
    first = builder.next
    for _ in range(3):
        builder.compute(*[("adamw", 420.0)] * 4)
    builder.section("optimizer", first)
    first = builder.next
    builder.compute(("d2h", 4.0))
    builder.section("loss", first)
