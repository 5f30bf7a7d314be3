"""AMD GPUs: code shared by both back ends (the kernel's files, and AMD SMI)."""
