"""What reaches the agent while jobs run: the node's state, and traces."""
