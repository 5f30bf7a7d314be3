"""Metrics for Prometheus: their catalogue, and the scraped text."""
