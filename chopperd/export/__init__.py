"""Metrics for Prometheus: their catalogue, and the text that is scraped."""
