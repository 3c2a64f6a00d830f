"""The studio: a page in the browser over `regard.look` and over the metrics of runs.

`shelf` knows what was named on the command line, `views` turns requests into JSON, `follow` reads metrics.jsonl while a run
writes it, `server` is the door, and `web/` is the page: plain ES modules that need no build and no network.
"""
