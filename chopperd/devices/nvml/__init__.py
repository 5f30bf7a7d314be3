"""NVIDIA GPUs through NVML; `backend` is the back end, the other modules are its parts."""
