"""AMD GPUs through AMD SMI, by what its own Python binding says of the library."""
