"""Ordinary tests; the last one has a budget of its own."""

import torch
from keyword_spotter import WORDS, KeywordSpotter


def test_one_score_per_word():
    assert KeywordSpotter()(torch.zeros(2, 49, 40)).shape == (2, WORDS)


def test_half_the_width_costs_less_than_a_third(model_budget):
    spotter = KeywordSpotter(hidden=32)
    model_budget(spotter, "float32 1x49x40").within(params="10.7 k", macs="250 kMAC")
