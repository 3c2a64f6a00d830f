"""Studies against what came before: recurrent and convolutional networks."""
