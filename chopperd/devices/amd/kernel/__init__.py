"""Back end over the files of the kernel driver `amdgpu`."""
