"""Operators, annotations, modules, phases and layers of real files, against plain Python stacks.

What is expected comes from `reference_stacks`; how layers and phases are told is written anew here,
as simply as the real files allow: one backward pass a step, layers that have a known class.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from chopperd.model.timeline import Phase
from chopperd.model.trace import Trace
from chopperd.traces.timeline.layout import lay_out
from chopperd.traces.timeline.links import link
from chopperd.traces.timeline.operations import attribute
from tests.integration.reference_stacks import (
    ANNOTATION,
    MODULE,
    OP,
    Launch,
    Span,
    Stacks,
    read_stacks,
)
from tests.integration.test_real_traces import GPU_FILES

pytestmark = pytest.mark.corpus

LAYER = re.compile(r"^(?:Qwen2DecoderLayer|TransformerBlock|BasicBlock)_\d+$")
BACKWARD = ("autograd::engine::evaluate_function", "torch::autograd::AccumulateGrad")
REDUCER = ("torch.distributed.ddp.reducer::", "torch::distributed::reducer::")
FSDP2 = ("cpu_fsdp2_rank0.pt.trace", "cpu_fsdp2_rank1.pt.trace")

PlainStacks = Callable[[str], Stacks]
RealTrace = Callable[[str], Trace]


@pytest.fixture(scope="module")
def stacks(shared: Path) -> PlainStacks:
    return cache(lambda name: read_stacks(shared / "traces" / f"{name}.json.gz"))


def runs_back(span: Span) -> bool:
    name = span.name
    return (
        name.startswith((*BACKWARD, *REDUCER, "FSDP::pre_backward", "FSDP::post_backward"))
        or name.startswith(("FSDP::backward_prefetch", "FSDP::root_post_backward_callback"))
        or re.fullmatch(r"\w+Backward\d*", name) is not None
    )


def optimizes(span: Span) -> bool:
    return span.name.startswith(("Optimizer.step#", "Optimizer.zero_grad#"))


def described(span: Span | None) -> tuple[str, int] | None:
    return None if span is None else (span.name, span.start_ns)


@pytest.mark.parametrize("name", GPU_FILES)
def test_what_launched_each_record_is_the_top_of_a_plain_stack(
    real_trace: RealTrace, stacks: PlainStacks, name: str
) -> None:
    trace = real_trace(name)
    call = link(trace.records, trace.calls, trace.names, trace.threads).call
    found = attribute(trace, call)
    spans = trace.spans

    def row(index: int) -> tuple[str, int] | None:
        return None if index < 0 else (trace.names[spans.name[index]], int(spans.start_ns[index]))

    columns = (trace.records.start_ns, trace.records.end_ns, found.op, found.annotation)
    ours = Counter(
        (start_ns, end_ns, row(op), row(annotation))
        for start_ns, end_ns, op, annotation in zip(
            *(column.tolist() for column in columns), strict=True
        )
    )
    theirs = Counter(
        (
            one.start_ns,
            one.end_ns,
            *(described(one.call and one.call.inner(kind)) for kind in (OP, ANNOTATION)),
        )
        for one in stacks(name).launches
    )
    assert ours == theirs


class Phases:
    """Phases of a file with one backward pass a step."""

    def __init__(self, file: Stacks) -> None:
        self.steps = [one for one in file.spans if one.name.startswith("ProfilerStep#")]
        self.back = [one for one in file.spans if runs_back(one)]
        self.back_threads = {one.thread for one in self.back}
        self.passes = {
            id(step): [one for one in self.back if step.start_ns <= one.start_ns < step.end_ns]
            for step in self.steps
        }

    def of(self, at: Span) -> str:
        for one in reversed([*at.around, at]):
            if runs_back(one) or optimizes(one):
                return "backward" if runs_back(one) else "optimizer"
        step = next((s for s in self.steps if s.start_ns <= at.start_ns < s.end_ns), None)
        nodes = self.passes[id(step)] if step else []
        if step is None or not nodes:
            return "unknown"
        first, last = nodes[0].start_ns, nodes[-1].start_ns
        if first <= at.start_ns <= last and at.thread in self.back_threads:
            return "backward"
        return "forward" if at.start_ns < first and at.thread == step.thread else "unknown"


class ModuleLayers:
    """Layers of a file that records modules."""

    def __init__(self, file: Stacks) -> None:
        self.arrows = file.arrows
        self.begun: dict[tuple[object, int], Span] = {}
        self.makers: dict[int, Span] = {}
        self.whole: dict[str, list[str]] = {}
        for span in file.spans:
            self.begun.setdefault((span.thread, span.start_ns), span)
            if span.args.get("Fwd thread id") == 0 and "Sequence number" in span.args:
                self.makers[span.args["Sequence number"]] = span
            path = span.modules
            if span.kind == MODULE and len(path) > len(self.whole.get(path[-1], [])):
                self.whole[path[-1]] = path

    def of(self, at: Span, phase: str) -> str | None:
        if phase != "backward":
            return self.named(at.modules)
        node = max((i for i, one in enumerate(at.around) if runs_back(one)), default=0)
        again = [one for one in at.around[node:] if one.kind == MODULE]
        if again:
            return self.named(again[-1].modules)
        for one in reversed(at.around):
            if place := self.arrows.get((one.thread, one.start_ns)):
                return self.named(self.begun[place].modules)
            if one.args.get("Fwd thread id", 0) > 0:
                return self.named(self.makers[one.args["Sequence number"]].modules)
        return None

    def named(self, path: list[str]) -> str | None:
        if not path:
            return None
        path = [*self.whole[path[0]][:-1], *path]
        cut = next((i for i, one in enumerate(path) if LAYER.match(one)), len(path) - 1)
        return "/".join(path[: cut + 1])


@pytest.mark.parametrize("name", GPU_FILES)
def test_phases_and_layers_of_each_record_are_those_of_plain_stacks(
    real_trace: RealTrace, stacks: PlainStacks, name: str
) -> None:
    file, timeline = stacks(name), lay_out(real_trace(name))
    phases, layers = Phases(file), ModuleLayers(file)

    def told(launch: Launch) -> tuple[str, str | None]:
        if launch.call is None:
            return "unknown", None
        phase = phases.of(launch.call)
        return phase, layers.of(launch.call, phase)

    labels = {-1: "unknown", 0: "forward", 1: "backward", 2: "optimizer"}
    ours = Counter(
        (start_ns, end_ns, labels[phase], timeline.layers[layer] if layer >= 0 else None)
        for device in timeline.devices
        for start_ns, end_ns, phase, layer in zip(
            device.start_ns.tolist(),
            device.end_ns.tolist(),
            device.phase.tolist(),
            device.layer.tolist(),
            strict=True,
        )
    )
    theirs = Counter((one.start_ns, one.end_ns, *told(one)) for one in file.launches)
    assert ours == theirs


class Annotations:
    """Annotations of files with steps by `ProfilerStep#` or vLLM, without annotated layers."""

    def __init__(self, file: Stacks) -> None:
        layers = ModuleLayers(file)
        self.arrows, self.begun, self.makers = layers.arrows, layers.begun, layers.makers

    def of(self, at: Span, phase: str) -> str | None:
        around = [i for i, one in enumerate(at.around) if self.counts(one)]
        own = at.around[around[-1]].name if around else None
        node = max((i for i, one in enumerate(at.around) if runs_back(one)), default=-1)
        if phase == "backward" and (around or [-1])[-1] < node:
            maker = self.maker(at)
            origin = maker and self.innermost(maker)
            if origin:
                return f"b_{origin}"
        torch_s = [one.name for one in at.around if one.name.startswith("nccl:")]
        return own or (torch_s[-1] if torch_s else None)

    def counts(self, one: Span) -> bool:
        return one.kind == ANNOTATION and not one.name.startswith(
            ("ProfilerStep#", "execute_context_", "nccl:")
        )

    def innermost(self, at: Span) -> str | None:
        return next((one.name for one in reversed(at.around) if self.counts(one)), None)

    def maker(self, at: Span) -> Span | None:
        for one in reversed(at.around):
            if place := self.arrows.get((one.thread, one.start_ns)):
                return self.begun[place]
            if one.args.get("Fwd thread id", 0) > 0:
                return self.makers[one.args["Sequence number"]]
        return None


@pytest.mark.parametrize("name", GPU_FILES)
def test_annotations_of_each_record_are_those_of_plain_stacks(
    real_trace: RealTrace, stacks: PlainStacks, name: str
) -> None:
    file, timeline = stacks(name), lay_out(real_trace(name))
    phases, annotations = Phases(file), Annotations(file)
    ours = Counter(
        (start_ns, end_ns, timeline.annotations[annotation] if annotation >= 0 else None)
        for device in timeline.devices
        for start_ns, end_ns, annotation in zip(
            device.start_ns.tolist(),
            device.end_ns.tolist(),
            device.annotation.tolist(),
            strict=True,
        )
    )
    theirs = Counter(
        (one.start_ns, one.end_ns, one.call and annotations.of(one.call, phases.of(one.call)))
        for one in file.launches
    )
    assert ours == theirs


def fqn(span: Span) -> str | None:
    """The module that an annotation of FSDP2 is about."""
    name = span.name
    if span.kind != ANNOTATION or not name.startswith("FSDP::") or "::root_" in name:
        return None
    if " for " in name:
        return name.split(" for ")[1]
    return name.split("(")[1].rstrip(")") or "(root)" if "(" in name else "(root)"


class ShardedLayers:
    """Layers of a file of FSDP2 without modules."""

    def __init__(self, file: Stacks, phases: Phases) -> None:
        self.phases = phases
        self.hooks = [one for one in file.spans if fqn(one)]
        self.makers = {
            one.args["Sequence number"]: one
            for one in file.spans
            if one.args.get("Fwd thread id") == 0 and "Sequence number" in one.args
        }

    def of(self, at: Span, phase: str) -> str | None:
        annotated = next((fqn(one) for one in reversed(at.around) if fqn(one)), None)
        if annotated or phase != "backward":
            return annotated or self.open_at(at, "FSDP::pre_forward", "FSDP::post_forward")
        nodes = (one for one in reversed([*at.around, at]) if one.args.get("Fwd thread id", 0) > 0)
        if node := next(nodes, None):
            maker = self.makers[node.args["Sequence number"]]
            if inherited := self.of(maker, self.phases.of(maker)):
                return inherited
        return self.open_at(at, "FSDP::pre_backward", "FSDP::post_backward_reduce")

    def open_at(self, at: Span, before: str, after: str) -> str | None:
        """The module whose hook before ran last, of those whose hook after has not run."""
        opened: list[str] = []
        for one in self.hooks:
            if one.thread != at.thread or one.start_ns > at.start_ns:
                continue
            module = str(fqn(one))
            if one.name.startswith(before):
                opened.append(module)
            elif one.name.startswith(after) and one.end_ns <= at.start_ns and module in opened:
                opened.remove(module)
        return opened[-1] if opened else None


@pytest.mark.parametrize("name", FSDP2)
def test_the_host_time_of_fsdp2_s_layers_is_that_of_plain_stacks(
    real_trace: RealTrace, stacks: PlainStacks, name: str
) -> None:
    file = stacks(name)
    phases = Phases(file)
    layers = ShardedLayers(file, phases)
    operators = [one for one in file.spans if one.kind == OP]
    own_ns = {id(one): one.end_ns - one.start_ns for one in operators}
    for one in operators:
        if parent := one.inner(OP):
            own_ns[id(parent)] -= one.end_ns - one.start_ns
    theirs: dict[tuple[str | None, str], list[int]] = defaultdict(lambda: [0, 0])
    for one in operators:
        phase = phases.of(one)
        total = theirs[layers.of(one, phase), phase]
        total[0] += 1
        total[1] += own_ns[id(one)]
    work = lay_out(real_trace(name)).host
    assert work is not None
    ours: dict[tuple[str | None, str], list[int]] = defaultdict(lambda: [0, 0])
    for layer, phase, time_ns in zip(work.layer, work.phase, work.own_ns.tolist(), strict=True):
        total = ours[work.layers[layer] if layer >= 0 else None, Phase(phase).label]
        total[0] += 1
        total[1] += time_ns
    assert ours == theirs
