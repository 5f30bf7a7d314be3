"""Back ends that read GPUs: one module a vendor or source, behind the `DeviceBackend` protocol."""
