"""Who may ask the agent for what, by its configuration."""

import os

from chopperd.api.access import AccessPolicy, host_names, read_token
from chopperd.config.sections import Config


def access_policy(config: Config) -> AccessPolicy:
    """Who may ask for what.

    Raises:
        ConfigError: The token's file can't be used.
    """
    token_file = config.api.token_file
    return AccessPolicy(
        agent_uid=os.geteuid(),
        admin_group=config.api.admin_group,
        token=None if token_file is None else read_token(token_file),
        hosts=host_names(config.api.listen, config.api.allowed_hosts),
    )
