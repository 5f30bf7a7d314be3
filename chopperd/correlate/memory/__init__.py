"""What the allocator of device memory did, step by step, and beside the clock."""
