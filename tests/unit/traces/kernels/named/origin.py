"""How the names of a table of real kernels are written down."""

from typing import NamedTuple

from chopperd.model.kinds import KernelClass


class Named(NamedTuple):
    """Names of one origin that have one class."""

    origin: str
    kernel_class: KernelClass
    names: tuple[str, ...]
