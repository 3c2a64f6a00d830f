#!/usr/bin/env bash
# Asks a server that `regard serve` started. Usage: ask.sh [ADDRESS] (http://127.0.0.1:8000)
set -euo pipefail
address=${1:-http://127.0.0.1:8000}
key=${REGARD_API_KEY:-none}
post() { curl -sS --fail-with-body "$address$1" -H "Authorization: Bearer $key" -H 'Content-Type: application/json' -d "$2"; echo; }

curl -sS "$address/health"; echo
post /v1/completions '{"model": "demo", "prompt": "The cat sat on the mat."}'
post /v1/chat/completions '{"model": "demo", "messages": [{"role": "user", "content": "The dog sees a cat."}], "stream": true}'
post /translate '{"q": "The cat sat on the mat.", "source": "en", "target": "de", "alternatives": 2}'
# Glass walls: what the decoder looked at while it wrote.
post /v1/completions '{"model": "demo", "prompt": "The cat sat.", "look": {"alignment": true}}'
