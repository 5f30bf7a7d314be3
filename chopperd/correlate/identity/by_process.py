"""Find the GPU of a trace by its process: what the driver listed and what the process saw."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.samples import ProcessRow
from chopperd.units import NS_PER_S

# Whether two names are of one GPU: UUIDs, PCI bus ids and labels as CUDA, NVML and users write.


def gpu_named(name: str, gpus: Sequence[GpuInfo]) -> GpuInfo | None:
    """Find the GPU of a label, UUID or PCI bus id, labels first; None if none has it."""
    labelled = next((gpu for gpu in gpus if name == gpu.gpu), None)
    return labelled or gpu_identified(name, name, gpus)


def gpu_identified(
    uuid: str | None, pci_bus_id: str | None, gpus: Sequence[GpuInfo]
) -> GpuInfo | None:
    """Find the GPU of a UUID, or else of a PCI bus id; None if none has it."""
    same_uuid = (gpu for gpu in gpus if same(bare_uuid(uuid), bare_uuid(gpu.uuid)))
    same_bus = (gpu for gpu in gpus if same(bare_bus(pci_bus_id), bare_bus(gpu.pci_bus_id)))
    return next(same_uuid, None) or next(same_bus, None)


def in_pci_order(gpus: Sequence[GpuInfo]) -> list[GpuInfo] | None:
    """Return the GPUs in order of their PCI bus ids; None if one is unknown or a MIG part.

    Source: CUDA's `CUDA_DEVICE_ORDER=PCI_BUS_ID`; NVML's indices have the same order.
    """
    by_bus = {bare_bus(gpu.pci_bus_id): gpu for gpu in gpus if gpu.parent is None}
    if None in by_bus or len(by_bus) != len(gpus):
        return None
    return [by_bus[bus] for bus in sorted(by_bus, key=str)]


def bare_uuid(uuid: str | None) -> str | None:
    """Return a UUID in lower case without its prefix, which torch leaves out; None if unknown."""
    return uuid.casefold().removeprefix("gpu-").removeprefix("mig-") if uuid else None


def bare_bus(pci_bus_id: str | None) -> str | None:
    """Return a PCI bus id in lower case with a domain of four digits and a function; or None.

    CUDA writes domains of four digits, NVML of eight.
    """
    if not pci_bus_id:
        return None
    address, _, function = pci_bus_id.casefold().partition(".")
    parts = address.split(":")
    domain = parts[0][-4:] if len(parts) > 2 else ""
    return ":".join((domain.zfill(4), *parts[-2:])) + f".{function or '0'}"


def same(a: str | None, b: str | None) -> bool:
    """Whether two names are known and equal."""
    return bool(a) and bool(b) and a == b


#: Starts and ends of processes are known this well where the wall clock is set meanwhile.
_SLACK_NS: Final = 2 * NS_PER_S
#: A context alone takes a few hundred MB, with libraries up to about 1 GB: this is work.
_WORK_BYTES: Final = 3 << 29
#: Of several GPUs the one with so many times the memory of any other is where the work is.
_MOST_OF_IT: Final = 4


class TracedProcess(Struct, frozen=True, kw_only=True):
    """The process that wrote a trace, as the trace describes it."""

    #: As the process itself knows it; None if the trace does not name a single one.
    pid: int | None = None
    host: str | None = None  # what it called the machine; None if not known
    #: First start and last end of the trace's rows; None without a wall-clock anchor.
    span_ns: tuple[int, int] | None = None
    used_count: int = 1  # how many devices have records
    counts_visible: bool = True  # whether device numbers count the GPUs that the process saw


class Match(Struct, frozen=True, kw_only=True):
    """The GPU of a device by one rule, or in words why there is none; both None: rule not used."""

    gpu: GpuInfo | None = None
    why_not: str | None = None


def gpu_of_process(
    device: int, process: TracedProcess, rows: Sequence[ProcessRow], gpus: Sequence[GpuInfo]
) -> Match:
    """Find the GPU that a trace's process used as a device.

    The GPU on which the driver listed the process during the trace is returned. If there are
    several (every rank of a job may open a context on the first GPU too), the process's visible
    devices must name one of them, or one must hold nearly all of its memory. Where the driver lists
    no process, the visible devices must name one.

    `gpus`: the sampled GPUs, without cards of which the parts are sampled.

    Source: DESIGN.md section 4, "GPU identity".
    """
    if not rows:
        return Match()
    if process.pid is None or process.span_ns is None:
        return Match(why_not="the trace does not name the process that wrote it, or its time")
    found = _row_of(process.pid, process.host, process.span_ns, rows)
    if isinstance(found, str):
        return Match(why_not=found)
    held = {name: gpu_named(name, gpus) for name in found.gpus}
    seen = _seen_gpu(device, process, found, gpus)
    if not held:
        gpu = seen if seen is not None and _is_sure_without_driver(device, found) else None
    elif len(held) == 1:
        gpu = _only(found, held, seen, process.span_ns[0])
    else:
        gpu = _of_several(found, held, seen, process)
    if gpu is not None:
        return Match(gpu=gpu)
    return Match(why_not=_doubt(found, held, process.pid))


def _row_of(
    pid: int, host: str | None, span_ns: tuple[int, int], rows: Sequence[ProcessRow]
) -> ProcessRow | str:
    """Find the process of a pid that lived all the time of a trace, or say why there is none."""
    alive = [row for row in rows if _lived(row, span_ns)]
    own = [row for row in alive if row.ns_pids and row.own_pid == pid]
    if host is not None:
        agreeing = [row for row in own if any(_is_same_host(host, name) for name in row.hosts)]
        own = agreeing or [row for row in own if not row.hosts]
    if len(own) == 1:
        return own[0]
    whose = f"process {pid}" + (f" of host {host}" if host else "")
    if own:
        return f"several processes have the number of its {whose}, each in a pid namespace"
    if any(not row.ns_pids for row in rows):
        return (
            f"its {whose} is not among those that can be seen: the driver lists processes of "
            "another pid namespace"
        )
    return f"its {whose} is not among those that were seen on a GPU at that time"


def _lived(row: ProcessRow, span_ns: tuple[int, int]) -> bool:
    if row.started_unix_ns is None:
        return False
    has_ended = row.gone_unix_ns is not None and row.gone_unix_ns + _SLACK_NS < span_ns[1]
    return row.started_unix_ns - _SLACK_NS <= span_ns[0] and not has_ended


def _is_same_host(a: str, b: str) -> bool:
    """Whether two names are of one host; one may lack its domain."""
    whole_a, whole_b = a.casefold(), b.casefold()
    if "." in whole_a and "." in whole_b:
        return whole_a == whole_b
    return whole_a.partition(".")[0] == whole_b.partition(".")[0]


def _only(
    row: ProcessRow, held: dict[str, GpuInfo | None], seen: GpuInfo | None, begin_ns: int
) -> GpuInfo | None:
    """Return the only GPU listed; None if another may have been opened after the last list."""
    ((name, gpu),) = held.items()
    listed_later = row.listed_unix_ns is not None and row.listed_unix_ns >= begin_ns
    has_work = (row.gpus[name] or 0) >= _WORK_BYTES
    return gpu if listed_later or has_work or (gpu is not None and gpu is seen) else None


def _of_several(
    row: ProcessRow, held: dict[str, GpuInfo | None], seen: GpuInfo | None, process: TracedProcess
) -> GpuInfo | None:
    """Return the one that the process saw as the device, or with most of its memory; or None."""
    sizes = {name: size or 0 for name, size in row.gpus.items()}
    largest, *others = sorted(sizes, key=sizes.__getitem__, reverse=True)
    has_most = sizes[largest] > _MOST_OF_IT * sizes[others[0]]
    if seen is not None:
        is_held = any(gpu is seen for gpu in held.values())
        return seen if is_held and not (has_most and held[largest] is not seen) else None
    is_single = process.used_count == 1 and sizes[largest] >= _WORK_BYTES
    return held[largest] if has_most and is_single else None


def _doubt(row: ProcessRow, held: dict[str, GpuInfo | None], pid: int) -> str:
    environment = (
        "the environment of process {pid} could not be read"
        if row.visible is None
        else "its environment names none"
    )
    if not held:
        return f"the driver lists process {pid} on no GPU, and " + environment.format(pid=pid)
    names = ", ".join(
        sorted(name if gpu is None else f"GPU {gpu.gpu}" for name, gpu in held.items())
    )
    if len(held) == 1:
        return f"process {pid} was listed on {names} only before the trace began"
    which = "and its visible devices do not show which one it used"
    return f"process {pid} has contexts on {names}, {which}"


def _is_sure_without_driver(device: int, row: ProcessRow) -> bool:
    """Whether a variable named the GPU; a script may choose its GPU itself, unseen from outside."""
    variables = row.visible or {}
    rank = variables.get("LOCAL_RANK", "")
    chosen = _first_set(variables, "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    chosen = chosen or variables.get("ROCR_VISIBLE_DEVICES")
    if chosen and len(_tokens(chosen)) == 1:
        return True
    return rank == str(device) if rank else bool(chosen)


def _seen_gpu(
    device: int, process: TracedProcess, row: ProcessRow, gpus: Sequence[GpuInfo]
) -> GpuInfo | None:
    if row.visible is None:
        return None
    vendors = {gpu.vendor for gpu in gpus}
    if vendors == {Vendor.AMD}:
        visible = _visible_amd(row, gpus)
    elif vendors == {Vendor.NVIDIA}:
        visible = _visible_nvidia(row, gpus)
    else:
        return None
    if visible is not None and len(visible) == process.used_count == 1:
        return visible[0]
    if visible is None or not process.counts_visible or not 0 <= device < len(visible):
        return None
    return visible[device]


def _visible_nvidia(row: ProcessRow, gpus: Sequence[GpuInfo]) -> list[GpuInfo] | None:
    """Return the GPUs that CUDA showed the process, in order; None if not known.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; without an order CUDA sorts by
    speed, which leaves equal GPUs in the order of their bus ids.
    """
    variables = row.visible or {}
    by_bus = variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    order = in_pci_order(gpus) if by_bus or len({gpu.name for gpu in gpus}) == 1 else None
    if order is not None and row.in_container:
        order = _given(variables.get("NVIDIA_VISIBLE_DEVICES"), order)
    elif _is_renumbered(variables):
        order = None
    return _chosen(variables.get("CUDA_VISIBLE_DEVICES"), order, gpus)


def _visible_amd(row: ProcessRow, gpus: Sequence[GpuInfo]) -> list[GpuInfo] | None:
    """Return the GPUs that HIP showed the process, in order; None if not known.

    Source: ROCm documentation, "GPU isolation techniques": ROCR_VISIBLE_DEVICES chooses among all,
    HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES) among those.
    """
    variables = row.visible or {}
    nodes = {gpu.kfd_node: gpu for gpu in gpus if gpu.kfd_node is not None}
    is_known = len(nodes) == len(gpus) and not (row.in_container or _is_renumbered(variables))
    order = [nodes[node] for node in sorted(nodes)] if is_known else None
    order = _chosen(variables.get("ROCR_VISIBLE_DEVICES"), order, gpus)
    return _chosen(
        _first_set(variables, "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), order, gpus
    )


def _given(text: str | None, order: list[GpuInfo]) -> list[GpuInfo] | None:
    """Return the GPUs that a container was given, in the order of `order`; None if not known."""
    if text is None or text == "all":
        return order if text else None
    given = _chosen(text, order, order)
    return [gpu for gpu in order if gpu in given] if given else None


def _chosen(
    text: str | None, order: list[GpuInfo] | None, gpus: Sequence[GpuInfo]
) -> list[GpuInfo] | None:
    """Return the GPUs of a list of indices and UUIDs; None if one is not known.

    `text`: the variable's value; None if it is not set, which chooses all. `order`: the GPUs that
    indices count; None if not known. `gpus`: all GPUs; the UUIDs in the list may be shortened.
    """
    if text is None:
        return order
    found: list[GpuInfo] = []
    for token in _tokens(text):
        gpu = _gpu_of_token(token, order, gpus)
        if gpu is None:
            return None
        found.append(gpu)
    return found


def _gpu_of_token(
    token: str, order: list[GpuInfo] | None, gpus: Sequence[GpuInfo]
) -> GpuInfo | None:
    if token.isdecimal():
        place = int(token)
        return order[place] if order is not None and place < len(order) else None
    wanted = bare_uuid(token) or ""
    own = [gpu for gpu in gpus if (bare_uuid(gpu.uuid) or "").startswith(wanted)]
    return own[0] if len(own) == 1 and wanted else None


def _tokens(text: str) -> list[str]:
    return [token.strip() for token in text.split(",") if token.strip()]


def _first_set(variables: Mapping[str, str], *names: str) -> str | None:
    return next((variables[name] for name in names if name in variables), None)


def _is_renumbered(variables: Mapping[str, str]) -> bool:
    """Whether indices may count a job's own GPUs only: Slurm can hide the others.

    Source: slurm.conf "ConstrainDevices": CUDA_VISIBLE_DEVICES counts from 0 in each job then.
    """
    tokens = _tokens(_first_set(variables, "SLURM_STEP_GPUS", "SLURM_JOB_GPUS") or "")
    return tokens != [str(place) for place in range(len(tokens))]
