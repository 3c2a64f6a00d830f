"""From the files that a recipe names to tokenizers and prepared corpora."""
