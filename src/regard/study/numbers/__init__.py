"""Printed numbers of teaching texts, computed again."""
