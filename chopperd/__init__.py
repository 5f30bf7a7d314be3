"""chopperd says how many nanoseconds of which training step the GPU clock cost, and why.

The root stays empty of imports so that ``import chopperd.torch`` costs a job nothing.
"""

__version__ = "0.1.0"
