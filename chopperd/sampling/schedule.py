"""When the next read falls: absolute periods, a seeded random point in each."""
