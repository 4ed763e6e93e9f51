"""A keyword spotter: 49 frames of 40 features in, the scores of 12 words out."""

from __future__ import annotations

import torch
from torch import nn

HIDDEN = 64
FEATURES, WORDS = 40, 12


class KeywordSpotter(nn.Module):
    """A convolution over time, a GRU, and a linear layer on its last step."""

    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.front = nn.Conv1d(FEATURES, hidden, 3, stride=2, padding=1)
        self.memory = nn.GRU(hidden, hidden, batch_first=True)
        self.words = nn.Linear(hidden, WORDS)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """frames (batch, time, features) → scores (batch, words)."""
        features = torch.relu(self.front(frames.transpose(1, 2)))
        steps, _ = self.memory(features.transpose(1, 2))
        scores: torch.Tensor = self.words(steps[:, -1])
        return scores
