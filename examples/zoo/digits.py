"""A network as Lightning writes them: trained by its trainer, measured as the module that it is."""

import lightning
import torch
from torch import nn


class Digits(lightning.LightningModule):
    """Two linear layers over 28 x 28 pixels."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        self.example_input_array = torch.zeros(1, 1, 28, 28)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.layers(image)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())
