"""Who may do what, and under which names and origins."""

import pytest

from chopperd.api.access import AccessPolicy, host_names, host_of, is_same_origin
from chopperd.model.captures import Viewer


def policy(token: str | None = "t" * 16) -> AccessPolicy:
    return AccessPolicy(
        agent_uid=990,
        admin_group="gpu-admins",
        token=token,
        is_member=lambda uid, group: (uid, group) == (1002, "gpu-admins"),
    )


@pytest.mark.parametrize(
    ("uid", "is_admin"), [(0, True), (990, True), (1002, True), (1000, False), (None, False)]
)
def test_root_the_agent_and_the_group_are_administrators(uid: int | None, is_admin: bool) -> None:
    assert policy().viewer(uid, has_token=False) == Viewer(uid=uid, is_admin=is_admin)


def test_the_token_makes_anyone_an_administrator() -> None:
    assert policy().viewer(None, has_token=True).is_admin


def test_only_the_token_is_the_token() -> None:
    assert policy().accepts_token("t" * 16)
    for wrong in ("", "t", "t" * 15, "t" * 17, "T" * 16, "é"):
        assert not policy().accepts_token(wrong)
    assert not policy(token=None).accepts_token("")


def test_the_token_does_not_show() -> None:
    assert "tttt" not in repr(policy())


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST:9470", "localhost"),
        ("localhost.", "localhost"),
        ("127.0.0.1:1", "127.0.0.1"),
        ("[::1]:9470", "[::1]"),
        ("[::1]", "[::1]"),
        ("[::1]x", ""),
        ("[::1", ""),
        ("", ""),
    ],
)
def test_a_host_is_what_stands_before_the_port(authority: str, host: str) -> None:
    assert host_of(authority) == host


def test_names_to_answer_to() -> None:
    names = host_names("[2001:DB8::1]:9470", ["Node-A.example", "fd00::1", "[fd00::2]"])
    assert names == {
        "localhost",
        "127.0.0.1",
        "[::1]",
        "[2001:db8::1]",
        "node-a.example",
        "[fd00::1]",
        "[fd00::2]",
    }
    assert host_names("", []) == {"localhost", "127.0.0.1", "[::1]"}


def test_an_origin_is_ours_only_with_our_port() -> None:
    host = "localhost:9470"
    assert is_same_origin("http://localhost:9470", host)
    assert is_same_origin("HTTP://LocalHost:9470", host)
    for other in (
        "http://localhost",
        "http://localhost:3000",
        "http://127.0.0.1:9470",
        "http://localhost:9470.evil.example",
        "file://localhost:9470",
        "null",
        "",
    ):
        assert not is_same_origin(other, host)


def test_whoever_is_inside_a_container_is_no_administrator_even_by_a_group() -> None:
    policy = AccessPolicy(agent_uid=7, admin_group="g", is_member=lambda _uid, _group: True)
    viewer = policy.viewer(-12345, has_token=False)
    assert (viewer.uid, viewer.is_admin) == (-12345, False)
    assert viewer.may_see(-12345)
    assert not viewer.may_see(0)
    assert policy.viewer(-12345, has_token=True).is_admin
