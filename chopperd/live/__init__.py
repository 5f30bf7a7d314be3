"""Live state of the node's GPUs: readings, integrals, clock drops, losses, cost of sampling."""
