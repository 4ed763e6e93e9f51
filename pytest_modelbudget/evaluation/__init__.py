"""Models on labelled data: their answers, the share of right ones, and how many a transform loses."""
