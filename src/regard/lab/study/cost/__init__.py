"""Studies of cost and scale: memory, caches, efficient attention, scaling laws."""
