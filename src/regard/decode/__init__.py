"""Decoding: beam search, greedy decoding, sampling and speculative decoding.

A search needs only `start` and `step` of a model, so it works for every decoder there is.
"""
