"""One small model of each of timm's families, by name and without weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.builders.marks import needs

from .holding import Entry, Unmeasured, counted, floats, measured

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.zoo,
    pytest.mark.filterwarnings("ignore"),  # others' own, of every release
    needs("timm"),
]

AT = {
    160: "test_mambaout test_vit test_vit_relpos",
    192: "nf_regnet_b0",
    224: """beit_base_patch16_224 cait_xxs24_224 coat_tiny convit_tiny convmixer_768_32 convnext_atto_rms
        cpubone_nano davit_tiny deit_tiny_patch16_224 densenet121 dla46x_c dpn48b efficientformer_l1
        efficientformerv2_s0 efficientnet_b0 efficientvim_m1 efficientvit_b0 efficientvit_m0
        ese_vovnet19b_slim_dw eva02_tiny_patch14_224 fasternet_t0 focalnet_tiny_srf gcvit_xxtiny ghostnet_050
        hardcorenas_b hgnetv2_b0 hiera_tiny_224 hrnet_w18_small iformer_s inception_next_atto lcnetv2_small
        legacy_seresnet18 levit_128s lowformer_b0 mixer_s16_224 mobilenetv3_small_050 mobileone_s1 mvitv2_tiny
        nest_tiny nextvit_small pit_xs_224 poolformerv2_s12 pvt_v2_b0 rdnet_tiny regnety_002 repghostnet_050
        repvit_m0_9 res2net50_26w_4s resnest26d resnet18 resnetv2_18 rexnet_100 selecsls42 shvit_s1 skresnet18
        starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224 tresnet_m twins_svt_small vgg11 visformer_tiny
        xcit_nano_12_p8_224""",
    240: "crossvit_tiny_240",
    256: """cs3darknet_focus_s eca_botnext26ts_256 edgenext_xx_small fastvit_s12 maxvit_pico_rw_256 mobilenetv5_base
        mobilevit_xxs""",
    299: "inception_v3 legacy_xception",
    384: "naflexvit_base_patch16_siglip",
}
MODELS = [(name, size) for size, names in AT.items() for name in names.split()]

ANTIALIASED = Unmeasured("position embeddings are resized with antialiasing, for which flops/1 has no figure")
UNMEASURED = {"naflexvit_base_patch16_siglip": ANTIALIASED}


def made(name: str) -> Any:
    import timm

    return timm.create_model(name)


@pytest.mark.parametrize(("name", "size"), MODELS, ids=[name for name, _ in MODELS])
def test_timm(name: str, size: int) -> None:
    """Parameters as the module lists them, MACs as torch's own formulas add up, every metric complete."""
    unmeasured = UNMEASURED.get(name, Entry.unmeasured)
    model = Entry(partial(made, name), floats(1, 3, size, size), unmeasured=unmeasured)
    assert measured(model) == counted(model)


def test_of_many_families() -> None:
    """At least sixty, each from another family of timm's or of another size."""
    assert len({name for name, _ in MODELS}) == len(MODELS) >= 60
