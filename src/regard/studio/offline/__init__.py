"""The studio in one HTML file: pages, model, tokenizer, and a forward pass in JavaScript."""
