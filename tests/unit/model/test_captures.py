"""Who may see what."""

import pytest

from chopperd.model.captures import Viewer


@pytest.mark.parametrize(
    ("uid", "is_admin", "owner_uid", "may"),
    [
        (1000, False, 1000, True),
        (1000, False, 1001, False),
        (1000, False, None, False),
        (None, False, None, False),  # nobody known is not the owner of what nobody owns
        (None, True, 1001, True),
        (0, True, None, True),
    ],
)
def test_a_user_sees_what_is_his_and_an_admin_all(
    uid: int | None, is_admin: bool, owner_uid: int | None, may: bool
) -> None:
    assert Viewer(uid=uid, is_admin=is_admin).may_see(owner_uid) is may
