"""The systemd unit, its user and its folders, by systemd's own programs."""

import grp
import os
import pwd
import struct
from pathlib import Path
from typing import Final

import pytest

from chopperd.config.load import load_config
from tests.tools import ROOT, needed, output

SYSTEMD: Final = ROOT / "deploy/systemd"
#: systemd's own measure of exposure, of 100; a unit without any hardening has 96.
MOST_EXPOSURE: Final = 20
_ACL_HEADER_BYTES: Final = 4
_ACL_ENTRY: Final = struct.Struct("<HHI")
_ACL_USER: Final = 2
_READ_WRITE: Final = 6


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with a program that exists on this machine."""
    text = (SYSTEMD / "chopperd.service").read_text(encoding="utf-8")
    adapted = text.replace("/opt/chopperd/bin/chopperd", needed("true"))
    assert adapted != text
    file = tmp_path / "chopperd.service"
    file.write_text(adapted, encoding="utf-8")
    return file


def _settings(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_the_unit_is_verified_without_a_word(unit: Path) -> None:
    assert output("systemd-analyze", "verify", "--man=no", unit) == ""


def test_the_unit_is_hardened(unit: Path) -> None:
    threshold = f"--threshold={MOST_EXPOSURE}"
    output("systemd-analyze", "security", "--offline=true", "--no-pager", threshold, unit)


def test_the_unit_never_kills_a_sampler(unit: Path) -> None:
    settings = _settings(unit.read_text(encoding="utf-8"))
    # "control-group" and "mixed" would send SIGKILL to what hangs in a driver, "kill" would when
    # the analysis runs out of memory.
    assert settings["KillMode"] == "process"
    assert settings["OOMPolicy"] == "continue"


def test_the_unit_needs_no_group_that_a_node_may_lack(unit: Path) -> None:
    assert "SupplementaryGroups" not in _settings(unit.read_text(encoding="utf-8"))


def test_the_user_is_made_with_the_groups_of_the_devices(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    output("systemd-sysusers", f"--root={tmp_path}", SYSTEMD / "chopperd.sysusers.conf")
    (user,) = (tmp_path / "etc/passwd").read_text(encoding="utf-8").splitlines()
    assert user.startswith("chopperd:")
    assert user.endswith(":/var/lib/chopperd:/usr/sbin/nologin")
    groups = [line.split(":") for line in (tmp_path / "etc/group").read_text().splitlines()]
    assert {name for name, _, _, members in groups if members == "chopperd"} == {"video", "render"}
    assert "chopperd" in {name for name, *_ in groups}


def test_the_agent_may_take_what_a_job_puts_into_a_folder_of_the_inbox(tmp_path: Path) -> None:
    # The user of the tests stands in for the agent's, which this machine does not have.
    user = pwd.getpwuid(os.geteuid())
    group = grp.getgrgid(os.getegid()).gr_name
    text = (SYSTEMD / "chopperd.tmpfiles.conf").read_text(encoding="utf-8")
    text = text.replace(" chopperd chopperd", f" {user.pw_name} {group}")
    file = tmp_path / "chopperd.conf"
    file.write_text(text.replace("user:chopperd", f"user:{user.pw_name}"), encoding="utf-8")
    output("systemd-tmpfiles", f"--root={tmp_path}", "--create", file)

    inbox = tmp_path / "var/lib/chopperd/inbox"
    assert inbox.stat().st_mode & 0o7777 == 0o1733
    (inbox / "job").mkdir()
    trace = inbox / "job/rank0.json"
    trace.touch()
    for entry in (trace.parent, trace):
        assert _access_of(entry, user.pw_uid) & _READ_WRITE == _READ_WRITE
        assert entry.stat().st_mode & 0o007 == 0, "open to other users"


def test_the_example_configuration_is_accepted_as_it_stands_and_with_all_it_shows(
    tmp_path: Path,
) -> None:
    example = (SYSTEMD / "config.toml").read_text(encoding="utf-8")
    shown = [
        line.removeprefix("# ") if line.startswith("# ") and " = " in line else line
        for line in example.splitlines()
    ]
    file = tmp_path / "config.toml"
    file.write_text("\n".join(shown), encoding="utf-8")
    assert load_config(SYSTEMD / "config.toml", {}).metrics.listen == "0.0.0.0:9469"
    origins = load_config(file, {}).origins
    assert {key for key, origin in origins.items() if origin == str(file)} == {
        "metrics.listen",
        "metrics.profile",
        "sampling.hz",
        "analysis.mode",
        "privacy.names",
        "health.fail_on_lost_driver",
    }


def _access_of(path: Path, uid: int) -> int:
    """What the path's access list lets a user named in it do, as bits of a mode."""
    listed = os.getxattr(path, "system.posix_acl_access")[_ACL_HEADER_BYTES:]
    entries = [entry for entry in _ACL_ENTRY.iter_unpack(listed)]
    (mask,) = (permissions for tag, permissions, _ in entries if tag == 0x10)
    (own,) = (permissions for tag, permissions, of in entries if (tag, of) == (_ACL_USER, uid))
    return int(own & mask)
