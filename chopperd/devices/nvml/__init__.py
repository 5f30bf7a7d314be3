"""NVIDIA GPUs through NVML: calls, codes, fields and identities; `backend` puts them together."""
