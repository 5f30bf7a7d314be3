"""What is measured on a machine with one NVIDIA GPU; `run.sh` runs all of it."""
