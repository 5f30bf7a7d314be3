"""What AMD's numbers mean, whichever way they come: by AMD SMI or from the kernel's files."""
