"""The files that a reader of the documents has beside their budgets: modules, model files, inputs."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from tests.builders.pte_files import C, V, pte_file
from tests.builders.tflite_files import mobilenet_v2

MODULES = {
    "nets.py": """
        from torch import nn

        def small(width=32):
            features = nn.Conv2d(3, width, 3, padding=1), nn.ReLU()
            return nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))

        small_by_hand = quantised = small
    """,
    "package/nets.py": """
        import torch
        from torch import nn

        class Small(nn.Module):
            def __init__(self):
                super().__init__()
                self.features = nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU())
                self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
                self.head = nn.Sequential(nn.Linear(48, 10))

            def forward(self, x):
                return {"boxes": self.head(self.pool(self.features(x)))}

        def small(width=48):
            return Small()

        small_by_hand = int8 = small

        def wide():
            return nn.Linear(64, 184_000)  # 184,000 x 65 = 11.96 M

        class Bert(nn.Embedding):
            def forward(self, input_ids, attention_mask):
                return super().forward(input_ids) * attention_mask[..., None]

        def bert():
            return Bert(30522, 8)

        class Detector(nn.Module):
            def forward(self, images, threshold):
                return [image * threshold for image in images]

        detector = Detector

        class UNet(nn.Conv2d):
            def forward(self, sample, timestep, return_dict, mask, mode, added):
                assert (return_dict, mask, mode) == (False, None, "fast")
                return super().forward(sample) * timestep, added["text_embeds"].sum() + added["time_ids"].sum()

        def unet():
            return UNet(4, 4, 1)
    """,
    "package/compiler.py": "lower = lambda model: model",
    "my_compiler/passes.py": "lower = lambda model: model",
    "build/net.tflite": "",
    "budgets/run_on_board.py": """
        import sys

        import numpy as np
        import torch

        sys.path.insert(0, "..")
        import nets

        torch.manual_seed(0)
        with np.load(sys.argv[2]) as inputs, torch.inference_mode():
            (x,) = inputs.values()
            np.savez(sys.argv[3], scores=nets.small().eval()(torch.from_numpy(x)).numpy())
    """,
}
MATRIX = f"""<ir_version: 8, opset_import: ["": 17]> g (float[batch, 64] x) => (float[batch, 10] y)
<float[64, 10] w = {{{", ".join(["0.5"] * 640)}}}> {{ y = MatMul(x, w) }}"""


def write_readers_files(folder: Path) -> None:
    """All of them, where the budgets of the documents say that they lie."""
    for name, text in MODULES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    for name in ("models", "budgets/data"):
        (folder / name).mkdir(parents=True)
    torch.jit.script(nn.Conv2d(3, 8, 3)).save(str(folder / "models" / "alexnet.pt"))
    torch.export.save(torch.export.export(nn.Linear(8, 4), (torch.zeros(2, 8),)), folder / "models" / "encoder.pt2")
    noise = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype("float32")
    np.savez(folder / "budgets" / "data" / "calibration.npz", **{"0": noise})
    np.savez(folder / "budgets" / "data" / "test.npz", inputs=noise, labels=np.arange(4))
    for name, batch in {"exported": "batch", "net": "1", "model": "1", "model_int8": "1"}.items():
        onnx.save(onnx.parser.parse_model(MATRIX.replace("batch", batch)), folder / f"{name}.onnx")
    (folder / "mobile.tflite").write_bytes(mobilenet_v2().content())
    values, calls = [V((1, 3, 32, 32), 0), V((1, 10), 12_288)], [C("", (0, 1), delegate=0)]
    program = pte_file(values, calls, [0], [1], pool=26_752, delegates=[("XnnpackBackend", bytes(2_384))])
    (folder / "model.pte").write_bytes(program)
