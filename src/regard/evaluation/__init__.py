"""Evaluation: the predictions of any model on any data, and their scores by any metric."""
