"""Serving: models behind an HTTP API, with continuous batching.

`requests` has what is asked and answered, `engine` the worker that answers it, `models` the models
of a process by name; the routes are built on these three.
"""
