"""AMD GPUs: what both of their back ends share, by metrics of the kernel or of AMD SMI."""
