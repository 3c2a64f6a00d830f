"""Checks that run while a model trains, and that `regard doctor` repeats on finished runs."""
