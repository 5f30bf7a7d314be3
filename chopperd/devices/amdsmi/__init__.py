"""AMD GPUs through AMD SMI: the library of ROCm, by what its own Python binding knows of it."""
