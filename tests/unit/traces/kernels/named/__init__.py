"""Kernels by the names that real programs gave them, classed by hand; each with where it is from.

They are from the traces beside the project, from profiles and issues that people published, and,
where a program was seen in none, from its sources. Of long names the end may be left out, or the
list of parameters; where who published a name shortened it, its middle is filled in.
"""

from typing import Final

from tests.unit.traces.kernels.named.attention import ATTENTION
from tests.unit.traces.kernels.named.communication import COMMUNICATION
from tests.unit.traces.kernels.named.elements import ELEMENTS
from tests.unit.traces.kernels.named.others import OTHERS
from tests.unit.traces.kernels.named.products import PRODUCTS
from tests.unit.traces.kernels.named.reductions import REDUCTIONS

NAMED: Final = (*PRODUCTS, *ATTENTION, *ELEMENTS, *REDUCTIONS, *COMMUNICATION, *OTHERS)
