"""Serving: models behind an HTTP API, with continuous batching.

`requests` has what is asked and answered, `engine` the worker that answers it, `models` the models
of a process by name. A route is a record, `service.Endpoint`: a handler of one `Call`, and the
types of its request and answers, which check them and are the OpenAPI document.
"""
