"""The laboratories, each named as its verb; the library imports none of them."""
