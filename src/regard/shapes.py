"""The letters that shape comments use, one meaning each, everywhere.

B  batch rows            T  query positions (target)     S  key positions (source)
D  d_model               H  query heads                  G  key/value heads (G divides H)
K  width of a key (d_k)  E  width of a value (d_v)       F  inner width of the feed-forward (d_ff)
V  vocabulary            W  beams of one sentence        L  capacity of a decoding cache
"""
