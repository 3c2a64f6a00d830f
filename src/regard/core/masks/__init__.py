"""Mask patterns: predicates on (batch, head, query, key) that compose, and their blocks."""
