"""Training on several processes: who they are, and how model and gradients are spread over them."""
