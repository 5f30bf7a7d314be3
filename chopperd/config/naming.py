"""What this node is called."""

import os

from chopperd.config.sections import Config


def node_name(config: Config) -> str:
    """The node's name in reports, metrics and samples: configured, else the host's."""
    return config.node.name or os.uname().nodename
