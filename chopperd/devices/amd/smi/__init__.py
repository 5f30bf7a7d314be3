"""Back end over AMD SMI: binding, library, processors, calls."""
