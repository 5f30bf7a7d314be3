"""The Grafana boards: sources by grafanalib, checks, and the generator of `generated/*.json`."""
