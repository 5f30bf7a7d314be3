"""AMD GPUs through the files of the kernel's driver `amdgpu`: no library, no device node."""
