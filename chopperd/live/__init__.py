"""What jobs hand to the agent: traces in the inbox or sent to it, and their way into its keep."""
