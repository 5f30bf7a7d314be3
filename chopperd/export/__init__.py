"""Metrics for Prometheus: what there is, and the text that is scraped."""
