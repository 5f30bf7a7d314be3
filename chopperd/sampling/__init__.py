"""Taking samples: schedule, shared ring, live integrals, the sampler process and its supervisor."""
