"""The recipe of a run: its schema and the words of its options."""
