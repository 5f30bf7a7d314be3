"""How the back end "amdsmi" starts, or says in one line why it does not (case 31)."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chopperd.clock import SystemClock
from chopperd.devices.amd.smi.backend import AmdSmiBackend, Paths
from chopperd.devices.amd.smi.binding import Binding, import_binding
from chopperd.devices.amd.smi.library import ERROR_BY_CODE, Library, open_library
from chopperd.devices.registry import open_backend
from chopperd.errors import BackendUnavailableError
from chopperd.model.devices import ReadScope
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor
from tests.fakes.amd.smi.bindings import ALL, INSTALLED, OLDER, OLDEST, binding
from tests.fakes.amd.smi.calls import DRIVER_NOT_LOADED, NO_PERM
from tests.fakes.amd.smi.fixtures import FakeAmdSmi, MakeFakeAmdSmi, forget_binding
from tests.fakes.amd.smi.gpu import METRICS
from tests.integration.devices.amdsmi import open_amdsmi

COMMAND = [sys.executable, "-P", "-m", "chopperd", "_sampler", "--backend", "amdsmi"]


@pytest.fixture
def rocm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A ROCm tree without a library whose binding begins with this code."""

    def made(code: str) -> Path:
        package = tmp_path / "rocm/share/amd_smi/amdsmi"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(code)
        (package / "amdsmi_wrapper.py").write_text("")
        monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
        monkeypatch.delenv("ROCM_HOME", raising=False)
        forget_binding()
        return package

    return made


@pytest.mark.parametrize("version", ALL)
def test_the_host_s_own_binding_is_taken_and_fits_its_library(
    make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path, version: str
) -> None:
    fake = make_fake_amdsmi(version=version)
    backend = open_amdsmi(tmp_path)
    try:
        module = importlib.import_module("amdsmi")
        assert Path(str(module.__file__)).resolve().is_relative_to(fake.binding.folder.resolve())
        assert backend.driver == "6.12.12"
        assert len(backend.devices()) == 1
    finally:
        backend.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('noise'); raise KeyError('libamd_smi.so')", "KeyError('libamd_smi.so')"),
        ("raise OSError('libdrm.so: cannot open')", "libdrm.so: cannot open"),
        ("raise AttributeError('undefined symbol: x')", "undefined symbol: x"),
        ("import os; os.write(1, b'out\\n'); os.write(2, b'err\\n'); raise SystemExit(3)", "out"),
    ],
)
def test_case_31_abc_a_binding_that_does_not_load_is_one_line_and_prints_nothing(
    rocm: Callable[[str], Path],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    words: str,
) -> None:
    package = rocm(code)
    monkeypatch.setattr("chopperd.devices.amd.smi.binding.find_spec", lambda _name: None)
    with pytest.raises(BackendUnavailableError) as caught:
        open_library()
    text = str(caught.value)
    assert words in text
    assert f"AMD's binding in {package.parent}" in text
    assert "\n" not in text
    assert capfd.readouterr() == ("", "")


def test_case_31_a_the_installed_binding_without_a_library_is_one_line_too(tmp_path: Path) -> None:
    """In a process of its own: here, earlier tests have loaded libraries of the name."""
    code = (
        "from chopperd.devices.amd.smi.library import open_library\n"
        "from chopperd.errors import BackendUnavailableError\n"
        "try: open_library()\n"
        "except BackendUnavailableError as error: print('reason:', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ROCM_PATH": str(tmp_path), "ROCM_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    [line] = done.stdout.splitlines()
    assert line.startswith("reason: the installed amdsmi does not load: ")
    assert "libamd_smi.so" in line


def test_a_machine_without_any_binding_is_told_where_one_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr("chopperd.devices.amd.smi.binding.find_spec", lambda _name: None)
    with pytest.raises(BackendUnavailableError, match=r"pip install 'chopperd\[amd\]'"):
        import_binding()


@pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, NO_PERM])
def test_case_31_d_a_driver_that_is_not_loaded_is_told_in_the_library_s_words(
    fake_amdsmi: FakeAmdSmi, code: int
) -> None:
    fake_amdsmi.node.system.fails(code, "amdsmi_init")
    with pytest.raises(BackendUnavailableError, match=rf"fake library \(AMD SMI code {code}\)"):
        open_library()


def test_case_31_e_no_devices_though_there_is_a_driver_is_no_healthy_node(
    fake_amdsmi: FakeAmdSmi, tmp_path: Path
) -> None:
    fake_amdsmi.node.has_gpus(0)
    with pytest.raises(BackendUnavailableError, match="there is no AMD GPU"):
        open_amdsmi(tmp_path)
    (tmp_path / "kfd").touch()
    with pytest.raises(BackendUnavailableError, match="no devices though the driver is present"):
        open_amdsmi(tmp_path)


def test_case_31_f_nvidia_s_binding_without_its_library_leaves_amd_s_gpus_read(
    fake_amdsmi: FakeAmdSmi,
) -> None:
    assert fake_amdsmi.node.gpus
    backend = open_backend("auto")
    assert backend.name == "amdsmi"
    backend.close()


def test_case_31_g_only_what_a_version_lacks_is_absent(
    fake_amdsmi: FakeAmdSmi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = fake_amdsmi.imported().amdsmi_interface.amdsmi_wrapper
    monkeypatch.delattr(wrapper, "amdsmi_get_gpu_memory_usage")
    monkeypatch.delattr(wrapper, "amdsmi_get_power_cap_info")
    backend = open_amdsmi(tmp_path)
    reading = backend.read(backend.devices()[0], ReadScope.FULL)
    backend.close()
    assert (reading.memory_used_bytes, reading.power_limit_w) == (None, None)
    assert (reading.sm_clock_mhz, reading.power_w, reading.temperature_c) == (2100, 500, 60)


def test_a_library_that_lacks_a_symbol_is_named(make_fake_amdsmi: MakeFakeAmdSmi) -> None:
    make_fake_amdsmi(without=frozenset({"amdsmi_get_gpu_kfd_info"}))
    with pytest.raises(BackendUnavailableError, match="amdsmi_get_gpu_kfd_info"):
        open_library()


@pytest.mark.parametrize("library", OLDER)
def test_a_library_of_another_version_is_refused_before_any_other_structure_is_read(
    make_fake_amdsmi: MakeFakeAmdSmi, library: str
) -> None:
    fake = make_fake_amdsmi(version=INSTALLED, library_of=library)
    with pytest.raises(BackendUnavailableError) as caught:
        open_library()
    text = str(caught.value)
    other = binding(library)
    assert f"AMD's binding {binding(INSTALLED).version}" in text
    assert ".".join(map(str, other.library_version[:3])) in text
    assert f"pip install 'amdsmi=={library.rpartition('.')[0]}.*'" in text
    assert fake.node.gpus[0].calls_total() == 0


@pytest.mark.parametrize("library", OLDER)
def test_metrics_of_another_length_are_refused_whatever_the_version_says(
    make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path, library: str
) -> None:
    fake = make_fake_amdsmi(version=INSTALLED, library_of=library)
    fake.node.has_version(*binding(INSTALLED).library_version)
    with pytest.raises(BackendUnavailableError, match=r"whose metrics have \d+ bytes, not 4544"):
        open_amdsmi(tmp_path)


def test_a_library_with_longer_metrics_than_the_binding_s_overruns_nothing(
    make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path
) -> None:
    fake = make_fake_amdsmi(version=OLDEST, library_of=INSTALLED)
    fake.node.has_version(*binding(OLDEST).library_version[:3])
    with pytest.raises(BackendUnavailableError, match="metrics have 4544 bytes, not 424"):
        open_amdsmi(tmp_path)


def test_a_binding_that_does_not_say_its_version_is_held_to_the_length_alone(
    fake_amdsmi: FakeAmdSmi, tmp_path: Path
) -> None:
    assert fake_amdsmi.node.gpus
    unnamed: Binding = replace(import_binding(), version=None)
    backend = AmdSmiBackend(Library(unnamed), SystemClock(), Paths(sysfs=tmp_path))
    assert backend.read(backend.devices()[0], ReadScope.FAST).sm_clock_mhz == 2100
    backend.close()


@pytest.mark.parametrize("version", ALL)
def test_every_code_of_every_binding_is_known(version: str) -> None:
    codes = set(binding(version).module.amdsmi_status_t__enumvalues)
    assert codes - {0} <= set(ERROR_BY_CODE)


def test_one_slow_status_call_is_never_made(fake_amdsmi: FakeAmdSmi, tmp_path: Path) -> None:
    backend = open_amdsmi(tmp_path)
    device = backend.devices()[0]
    for scope in ReadScope:
        backend.read(device, scope)
    backend.probe(device, 2)
    backend.trouble(device)
    backend.close()
    assert fake_amdsmi.node.gpus[0].calls_of("amdsmi_get_violation_status") == 0
    assert fake_amdsmi.node.gpus[0].calls_of(METRICS) > 4


def test_a_mismatch_is_said_by_the_sampler_process(make_fake_amdsmi: MakeFakeAmdSmi) -> None:
    make_fake_amdsmi(version=INSTALLED, library_of=OLDEST)
    supervisor = SamplerSupervisor(COMMAND, SamplerSettings(), SystemClock())
    with pytest.raises(BackendUnavailableError, match=r"was not made for the library 24\.6\.3"):
        supervisor.start()
