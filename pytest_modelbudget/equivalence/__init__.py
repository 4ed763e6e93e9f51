"""Whether two models compute the same: runs side by side, distances, and the judgement."""
