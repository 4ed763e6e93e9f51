"""Values of layers: their statistics, how they are captured, and what runs are measured."""
