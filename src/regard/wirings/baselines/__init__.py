"""What came before the Transformer: recurrent, convolutional and memory networks."""
