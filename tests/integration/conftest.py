"""Fixtures of the integration tests."""

from tests.fakes.nvml.fixtures import fake_nvml, make_fake_nvml, nvml_library

__all__ = ["fake_nvml", "make_fake_nvml", "nvml_library"]
