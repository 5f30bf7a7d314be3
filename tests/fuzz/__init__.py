"""Mutated traces by the million: `make fuzz`; a short, fixed part of it is among the tests.

Nothing here is collected by pytest.
"""
