"""Trains the MNIST net on scikit-learn's digits, and writes its weights, in 8 bits, and 1,000 digits to test it on.

``pip install scikit-learn``, then ``python -m examples.lab.train_digits``. The files are in git, for another version of
torch may train other weights. Digits: Optical Recognition of Handwritten Digits, E. Alpaydin, UCI, CC BY 4.0.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from examples.lab.digits import TEST, enlarged
from examples.lab.nets import WEIGHTS, mnist_net

TRAINED, EPOCHS = 797, 12  # of 1,797 digits; the others test


def main() -> None:
    """Write both files."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = digits.images.astype(np.uint8)[order], digits.target[order]
    np.savez_compressed(TEST, images=images[TRAINED:], labels=labels[TRAINED:].astype(np.uint8))
    torch.manual_seed(0)
    net = mnist_net()
    train(net, torch.from_numpy(enlarged(images[:TRAINED])), torch.from_numpy(labels[:TRAINED]))
    stored = {}
    for name, weight in net.state_dict().items():
        scale = weight.abs().amax(dim=tuple(range(1, weight.ndim)), keepdim=True) / 127
        stored |= {name: (weight / scale).round().to(torch.int8).numpy(), f"{name}.scale": scale.numpy()}
    np.savez_compressed(WEIGHTS, **stored)


def train(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Twelve epochs of Adam in batches of 32."""
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(labels)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
