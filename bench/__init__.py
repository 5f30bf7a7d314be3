"""Measurements of the budgets; never part of the tests."""
