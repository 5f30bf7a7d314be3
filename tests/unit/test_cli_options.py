"""How configuration and command line become the options of a report."""

from chopperd.cli.options import report_options
from chopperd.config.load import load_config
from chopperd.report.build.clocked_device import JoinOptions


def join(reference_mhz: float | None) -> JoinOptions:
    """With 1980 MHz configured for all GPUs and 1755 MHz for model A."""
    config = load_config(
        None,
        {"CHOPPERD_REFERENCE__SM_CLOCK_MHZ": "1980", "CHOPPERD_REFERENCE__MODELS": "{A = 1755}"},
    )
    return report_options(config, reference_mhz=reference_mhz).join


def test_a_models_own_reference_goes_before_the_one_for_all() -> None:
    options = join(None)
    assert options.reference_mhz is None
    assert options.model_references_mhz == {"A": 1755.0}
    assert options.default_reference_mhz == 1980.0


def test_the_command_lines_reference_goes_before_both() -> None:
    assert join(1500.0).reference_mhz == 1500.0
