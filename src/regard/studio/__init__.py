"""The studio: a page in the browser over `regard.look` and over the metrics of training runs.

`model_store` opens the models and runs that the command line names, `requests` validates what a
page may ask, `views` turns requests into JSON, `metrics_tail` reads metrics.jsonl while a run
writes it, `server` is the HTTP server, and `web/` is the page: plain ES modules that need no build
and no network.
"""
