"""The one part of the build that pyproject.toml can't say for good: a C library that is optional.

Without a compiler the package installs all the same, and samples in Python.
"""

from setuptools import Extension, setup

_FOLDER = "chopperd/sampling/native"

setup(
    ext_modules=[
        # Not a Python module: ctypes loads it.
        Extension(
            "chopperd.sampling.native._native",
            sources=[f"{_FOLDER}/ticks.c", f"{_FOLDER}/integrals.c"],
            depends=[f"{_FOLDER}/native.h"],
            extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-ffp-contract=off"],
            optional=True,
        )
    ]
)
