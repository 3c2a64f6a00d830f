"""Asks a server that `regard serve` started, by OpenAI's client (pip install openai).

Usage: python ask.py [ADDRESS], by default http://127.0.0.1:8000
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=f"{address}/v1", api_key=os.environ.get("REGARD_API_KEY", "none"))

for model in client.models.list():
    print(model.id)

answer = client.completions.create(model="demo", prompt="The cat sat on the mat.")
print(answer.choices[0].text)

stream = client.chat.completions.create(
    model="demo",
    messages=[{"role": "user", "content": "The dog does not enter the house."}],
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
