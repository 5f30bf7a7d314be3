from chopperd.config.load import effective, load_config
from chopperd.report.text.lists import render_settings
from chopperd.report.text.page import page_text


def test_every_setting_shows_value_and_origin_and_what_is_not_set() -> None:
    config = load_config(None, {"CHOPPERD_SAMPLING__HZ": "25"})
    lines = page_text(render_settings(effective(config))).splitlines()
    (hz,) = [line.split() for line in lines if line.startswith("sampling.hz ")]
    assert hz[:3] == ["sampling.hz", "25.0", "CHOPPERD_SAMPLING__HZ"]
    (limit,) = [line.split() for line in lines if line.startswith("reference.limit_mhz ")]
    assert limit[:4] == ["reference.limit_mhz", "not", "set", "default"]
