"""Metrics, each with its signature or definition."""
