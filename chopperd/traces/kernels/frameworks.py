"""Which data-parallel framework a trace shows, by the names that only it writes."""

import re
from collections.abc import Iterable
from typing import Final

from chopperd.model.timeline import Framework

#: Source: names in PyTorch's FSDP1 (`FullyShardedDataParallel.*` annotations), FSDP2 (`FSDP::*`
#: annotations, `fsdp::*` operators) and DDP; DeepSpeed's and Megatron's own class and module names.
SIGNS: Final = (
    ("fsdp1", re.compile(r"^FullyShardedDataParallel\.")),
    ("fsdp2", re.compile(r"^FSDP::|^fsdp::")),
    ("ddp", re.compile(r"^DistributedDataParallel\.")),
    ("deepspeed", re.compile(r"deepspeed", re.IGNORECASE)),
    ("megatron", re.compile(r"megatron", re.IGNORECASE)),
)

EXAMPLES_EACH: Final = 3


def framework(names: Iterable[str]) -> Framework:
    """The framework, "none" or "several", with up to three names each as evidence.

    Evidence is cut before module names, which tell of the model: `FSDP::pre_forward (layers.0)`
    gives "fsdp2: FSDP::pre_forward".
    """
    found: dict[str, dict[str, None]] = {}
    for name in names:
        for which, sign in SIGNS:
            if sign.search(name):
                found.setdefault(which, {})[name.split(" ")[0]] = None
    evidence = tuple(
        f"{which}: {example}"
        for which, _ in SIGNS
        for example in sorted(found.get(which, ()))[:EXAMPLES_EACH]
    )
    match len(found):
        case 0:
            return Framework(name="none", evidence=())
        case 1:
            return Framework(name=next(iter(found)), evidence=evidence)
        case _:
            return Framework(name="several", evidence=evidence)
