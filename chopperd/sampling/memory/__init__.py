"""Memory that the sampler shares with its readers: layout, one writer, any number of readers."""
