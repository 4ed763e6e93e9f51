"""Models on labelled data: answers, accuracies, and drops."""
