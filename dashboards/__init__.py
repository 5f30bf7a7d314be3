"""Grafana dashboards: sources for grafanalib, checks, and the generator of `generated/*.json`."""
