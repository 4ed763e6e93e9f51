"""Broken budgets: each is refused in its place, with what is wrong and the way out."""

from __future__ import annotations

import pytest

from tests.builders.texts import VISION, Problems, inputs, limits, model

BROKEN = [
    pytest.param(
        VISION.replace("models:", "modles:"),
        ["4:1: unknown key 'modles' in a budget file: did you mean 'models'?"],
        id="unknown key",
    ),
    *(
        pytest.param(
            f"model_budget: 1\nmodels:\n  net:\n    {key}: {address}\n    limits: {{params: 5}}\n",
            [f"{place}: '{address}' is an address, and nothing is fetched: write the path of a model file"],
            id=f"address under {key}",
        )
        for key, address, place in (
            ("onnx", "https://example.org/a.onnx", "4:11"),
            ("torchscript", "s3://models/a.pt", "4:18"),
            ("exported", "file:///models/a.pt2", "4:15"),
        )
    ),
    *(
        pytest.param(
            model("    inputs: float32 1x3\n"
                  f"    transforms: {{q: {{quantize: {{weights: {{bits: {bits}}}}}, equivalence: lossy}}}}"),
            [f"7:49: {said}"],
            id=f"bits: {bits}",
        )
        for bits, said in (
            ("33", "bits of 33: it must be 2 to 32"), ("0", "bits of 0: it must be 2 to 32"),
            ("8.0", "expected bits: a whole number, found '8.0'"),
        )
    ),
    pytest.param(
        model("    transforms: {q: {quantize: {weights: 4, bias: kept}, limits: {macs: 1 G}}}"),
        ["6:51: expected bits: a whole number, found 'kept'"],
        id="a grid in a word",
    ),
    pytest.param(limits("{ops: {deny: [lstm, gru], allow: [gru, linear]}}"),
                 ["5:20: gru is both allowed and denied: name it in one of the two"], id="denied and allowed"),
    pytest.param("model_budget: 2\nwhatever: x", ["1:15: model_budget: 2 is read by a newer"],
                 id="newer version"),
    pytest.param("model_budget: yes", ["1:1: a budget file needs",
                                        "1:15: model_budget must be the number 1, not 'yes': write model_budget: 1"],
                 id="no version"),
    pytest.param('model_budget: "1"',
                 ["1:1: a budget file needs", "1:15: model_budget must be the number 1, not '1': write "
                  "model_budget: 1"], id="a version in quotes"),
    pytest.param("model_budget: 1\nmodels: {}", ["2:9: expected models: a mapping"],
                 id="no models"),
    pytest.param("model_budget: 1\nmodels:", ["2:8: expected models: a mapping"],
                 id="models of nothing"),
    pytest.param("", ["1:1: the file is empty"], id="empty"),
    pytest.param("model_budget: 1\n---\na: b", ["2:1: a second document"], id="documents"),
    pytest.param("model_budget: 1\nmodels: {a: [}", ["2:14: broken YAML"], id="syntax"),
    pytest.param("model_budget: 1\nmodels:\n\ta: 1", ["3:1: broken YAML", "write spaces in place of"], id="tab"),
    pytest.param("model_budget: 1\nmodels:\n  a:\ttorch", ["3:5: broken YAML", "write spaces in place of the tab"],
                 id="tab behind a key"),
    *(
        pytest.param(limits(words), [f"{place}: broken YAML: ", way_out], id=f"syntax: {words}")
        for words, place, way_out in (
            ("{params: 5 k\n", "7:11", "but got ':' while parsing a flow mapping from line 5"),
            ("{ops: {deny: [lstm}}", "5:31", "expected ',' or ']', but got '}'"),
            ("{ops: {deny: [lstm,\n      gru}", "6:10", "but got '}' while parsing a flow sequence from line 5"),
            ("{params: '5 k}", "7:1", "unexpected end of stream while scanning a quoted scalar from line 5"),
            ('{params: "5 k}', "7:1", "unexpected end of stream while scanning a quoted scalar from line 5"),
            ("{params: @5}", "5:22", "cannot start any token: put the value in quotes"),
            ("\n      params: %5", "6:15", "cannot start any token: put the value in quotes"),
            ("\n      params: a: b", "6:16", "put a value with a colon in quotes, or is one missing"),
            ("\n      params\n        max: 5", "7:12", "or is one missing on the line above?"),
            ("\n      params 5\n      macs: 5", "7:11", "or is one missing on the line above?"),
            ("\n      params: 5\n   macs: 5", "7:4", "indent this line as those that it belongs to"),
        )
    ),
    pytest.param(b"model_budget: 1\nx: \xff", ["1:1: not UTF-8"], id="not UTF-8"),
    pytest.param("model_budget: 1\n".encode("utf-16-le"), ["1:1: not UTF-8"], id="UTF-16 without a mark"),
    pytest.param("model_budget: 1\n".encode("utf-32"), ["1:1: not UTF-8"], id="UTF-32"),
    pytest.param("model_budget: 1\nx: \x07", ["2:4: the character"], id="control character"),
    pytest.param('model_budget: 1\nx: "\\U99999999"', ["broken YAML"], id="no such character"),
    pytest.param('model_budget: 1\nmodels: {"\\ud800": 1}', ["2:10: half a character"],
                 id="surrogate"),
    pytest.param("model_budget: 1\nmodels: " + "[" * 30_000, ["1:1: broken YAML: maximum recursion"],
                 id="deep"),
    pytest.param("- model_budget", ["1:1: expected a budget file: a mapping"], id="list"),
    pytest.param("model_budget: 1\nmodels: {a: &x {}, b: *x}", ["the alias *x is refused"],
                 id="alias"),
    pytest.param(inputs("float32 1x3") + "    <<: {dtype: float32}",
                 ["7:5: unknown key '<<' in a model"], id="merge key"),
    pytest.param(inputs("!!str float32 1x3"), ["6:13: the tag"], id="tag"),
    pytest.param(inputs("float32 1x3") + "    torch: c:d", ["7:5: the key 'torch' is given twice, "
                 "first on line 4"], id="duplicate key"),
    pytest.param(inputs("float32 1x3") + "    ? [a]\n    : b", ["7:7: a key must be one word"],
                 id="list as key"),
    pytest.param(model("", limits="{macs: 1}"), ["3:3: the model 'net' has no inputs"],
                 id="no inputs"),
    pytest.param(inputs("float23 1x3"), ["6:13: 'float23' is no element type: did you mean "
                 "'float32'"], id="no dtype"),
    pytest.param(inputs("[float32[1, 3]]"), ["6:21: broken YAML", "needs quotes inside {…} and"],
                 id="unquoted spec"),
    pytest.param(inputs("{x: float32[1, 3]}"), ["needs quotes inside {…} and […]"],
                 id="unquoted named spec"),
    pytest.param(inputs("float32"), ["6:13: 'float32' has no shape"], id="no shape"),
    *(
        pytest.param(inputs(f"'{spec}'"), [f"6:13: '{spec}' is no input: did you mean float32 1x3x8x8?"], id=spec)
        for spec in (
            "float32 1X3X8X8", "float32 1×3×8×8", "float32 1 x 3 x 8 x 8", "1x3x8x8 float32", "1x3x8x8 fp32",
            "torch.float32 1x3x8x8", "float32: 1x3x8x8", "[1, 3, 8, 8] float32", "1X3X8X8",
        )
    ),
    *(
        pytest.param(inputs(f"'{spec}'"), [words], id=spec)
        for spec, words in {
            "float32 1x3xHxW": "is no input: 'H' is no size: write a real one",
            "float99 (1, 3)": "is no element type: did you mean 'float32'?",
            "float32 about 3": "is no input: write one such as float32 1x3x224x224",
        }.items()
    ),
    pytest.param(limits("{params: 1\u00a0k}"), ["5:22: params: '1 k' has a blank of another kind than the space bar's"],
                 id="a no-break space"),
    pytest.param(inputs("float32 1x-3"), ["6:13: 'float32 1x-3' is no input"], id="negative size"),
    pytest.param(inputs("float32 " + "x".join("1" * 17)), ["17 dimensions"], id="dimensions"),
    pytest.param(inputs("float32 99999999999999999999"), ["6:13: a dimension of 99999999999999999999: it must "
                 "be 0 to 9,223,372,036,854,775,807"], id="huge size"),
    pytest.param(inputs("{dtype: int64, shape: [1, -1]}"), ["6:39: a dimension of -1"],
                 id="negative listed size"),
    pytest.param(inputs("{dtype: int64, shape: [1.5]}"), ["6:36: expected a dimension"],
                 id="fractional size"),
    pytest.param(inputs("{dtype: int64}"), ["6:13: an input needs the key 'shape'"],
                 id="spec without shape"),
    pytest.param(inputs("{dtype: int64, shape: [1], low: 5, high: 5}"),
                 ["6:54: no integer is at least 5 and below 5"], id="empty range"),
    pytest.param(inputs("{dtype: float32, shape: [1], high: 5}"), ["6:42: 'high' is for integer"],
                 id="range of floats"),
    pytest.param(inputs("float32 1x3") + "    dtype: int8", ["7:12: 'int8' is no floating-point type"],
                 id="integer model"),
    pytest.param(inputs("float32 1x3") + "    dims: {batch: 1}", ["7:5: 'dims' binds symbols"],
                 id="dims of torch"),
    pytest.param(inputs("float32 1x3") + "    qdq: float",
                 ["7:10: 'float' is no way to read QDQ: known are grouped, as_written"], id="qdq"),
    pytest.param(inputs("float32 1x3") + "    training: {optimizer: adm}",
                 ["7:27: 'adm' is no optimizer whose states are known: did you mean 'adam'?"], id="optimizer"),
    pytest.param(inputs("float32 1x3") + "    training: adam", ["7:15: expected training: a mapping"], id="training"),
    pytest.param(inputs("float32 1x3") + "    training: {}", ["7:15: training needs the key"], id="no training"),
    pytest.param(inputs("float32 1x3") + "    kwargs: {a b: 1}", ["7:14: 'a b' is no name"],
                 id="no argument's name"),
    pytest.param(VISION.replace("torchvision.models:resnet18", "torchvision.models.resnet18"),
                 ["6:12: 'torchvision.models.resnet18' is no module:attribute: did you mean "
                  "torchvision.models:resnet18?"], id="dotted target"),
    pytest.param(VISION.replace("torchvision.models:resnet18", "weights/resnet.pt"),
                 ["6:12: 'weights/resnet.pt' is a file, and a state dict is no model: name a "
                  "factory that loads it", "torchscript:"], id="state dict"),
    pytest.param(VISION.replace("../models/alexnet.pt", "../../x.pt"),
                 ["18:27: '../../x.pt' lies outside the project"], id="outside"),
    pytest.param(VISION.replace("../models/alexnet.pt", "/etc/x.pt"), ["outside the project"],
                 id="absolute"),
    pytest.param(VISION.replace("../models/alexnet.pt", "..\\x.pt"), ["write forward slashes: ../x.pt"],
                 id="backslash"),
    pytest.param(VISION.replace("../models/alexnet.pt", "a.pt2"),
                 ["18:27: 'a.pt2' is an exported program: write it under exported:"],
                 id="other format"),
    pytest.param(VISION.replace("torchscript: ../models/alexnet.pt", "torchscript: a.onnx"),
                 ["18:27: 'a.onnx' is an ONNX model: write it under onnx:"], id="onnx elsewhere"),
    pytest.param(VISION.replace("{torchscript:", "{torch: a:b, torchscript:"),
                 ["18:26: 'torchscript' and 'torch' exclude each other: a model has one of them"], id="two sources"),
    pytest.param(VISION.replace("{torchscript:", "{args: [1], torchscript:"),
                 ["18:14: 'args' is for a callable"], id="arguments of a file"),
    pytest.param(VISION.replace("scripted:", "'a::b':"), ["18:3: 'a::b' is no name of a model: write visible"],
                 id="colons in a name"),
    pytest.param(VISION.replace("scripted:", "a[1]:"), ["18:3: 'a[1]' is no name"], id="bracket"),
    pytest.param(VISION.replace("scripted:", "a@b:"), ["18:3: 'a@b' is no name"], id="at sign"),
    pytest.param(VISION.replace("scripted:", '"a\\nb":'), ["18:3: 'a\\nb' is no name"],
                 id="line break"),
    pytest.param(VISION.replace("scripted:", '"":'), ["18:3: '' is no name"], id="empty name"),
    pytest.param(VISION.replace("      batch8: {inputs", "      macs: {inputs"),
                 ["17:7: 'macs' is no name of a variant: checks are called so"], id="variant called like a metric"),
    pytest.param(VISION.replace("      batch8: {inputs", "      equivalence: {inputs"),
                 ["17:7: 'equivalence' is no name of a variant"], id="variant called equivalence"),
    pytest.param(VISION.replace(", limits: {peak_activation: 52 MiB}", ""),
                 ["17:7: 'batch8' has none of the keys limits, scopes, transforms"], id="variant without limits"),
    pytest.param(inputs("float32 1x3").replace("    limits: {params: 1 k}\n", ""),
                 ["3:3: 'net' has none of the keys limits, scopes, variants"], id="no limits"),
    pytest.param(limits("{}"), ["5:5: 'limits' has none of the keys params, trainable_params"], id="empty limits"),
    pytest.param(limits("{parms: 1 k}"), ["5:14: unknown key 'parms' in limits: did you mean "
                 "'params'?"], id="unknown metric"),
    pytest.param(limits("{params: 26 mb}"), ["5:22: params: '26 mb'"], id="unit"),
    pytest.param(limits("{params: 1.5}"), ["5:22: params: '1.5' has no unit"], id="bare float"),
    pytest.param(limits("{params: }"), ["found nothing"], id="no quantity"),
    pytest.param(limits("{params: [1]}"), ["5:22: expected a quantity of param"], id="list"),
    pytest.param(limits("{macs: 1,5 GMAC}"), ["'5 GMAC' after a comma: write 1.5 for 1,5, and 1230"],
                 id="decimal comma in a flow"),
    pytest.param(limits("{macs: {max: 1 k, min: 2 k}}"), ["5:14: min 2 k is above max 1 k"],
                 id="no room"),
    pytest.param(limits("{macs: {level: warn}}"), ["5:14: 'macs' has none of the keys max, min, grow: give one"],
                 id="no bound"),
    pytest.param(limits("{macs: {max: 1 k, level: warning}}"), ["5:38: 'warning' is no level"],
                 id="level"),
    pytest.param(limits("{macs: {grow: 2}}"), ["5:27: grow: '2' could mean 2% or 2 times"],
                 id="growth without a sign"),
    pytest.param(limits("{macs: {max: 1 k, floor: 1 k}}"), ["5:31: 'floor' is the least that"],
                 id="floor alone"),
    pytest.param(limits("{macs: {grow: 2%, floor: 2%}}"), ["5:38: floor: '2%' could mean"],
                 id="floor in percent"),
    pytest.param(limits("{arithmetic_intensity: {grow: 2%}}"), ["growth is defined for counts"],
                 id="growth of a ratio"),
    pytest.param(limits("{ops: {grow: 2%}}"), ["unknown key 'grow' in a limit on ops"],
                 id="growth of ops"),
    pytest.param(limits("{macs: {grow: auto}}"), ["grow: 'auto' is no quantity"],
                 id="grow: auto"),
    pytest.param(VISION.replace("model_budget: 1", "model_budget: 1\nloosen: never"),
                 ["2:9: 'never' is no value of loosen: known are warn, forbid"], id="loosen: never"),
    pytest.param(inputs("float32 1x3") + "    loosen: forbid", ["7:5: 'loosen' is no key of a model"],
                 id="loosen in a model"),
    *(
        pytest.param(inputs("float32 1x3") + f"    {key}: x", [f"7:5: '{key}' is no key of a model: {place}"],
                     id=f"{key} in a model")
        for key, place in {
            "loosen": "write it next to models, and not in one",
            "hardware": "write it next to models, and not in one",
            "defaults": "write it next to models, and not in one",
            "level": "write it on a limit: {max: 11.7 M, level: warn}",
        }.items()
    ),
    *(
        pytest.param(VISION.replace("defaults:", f"defaults:\n  {key}: {{params: 5}}"),
                     [f"3:3: '{key}' is no key of the defaults: each model has its own: write it there"],
                     id=f"{key} in the defaults")
        for key in ("limits", "scopes", "transforms", "variants")
    ),
    pytest.param(VISION.replace("defaults:\n  inputs: float32 1x3x224x224", "defaults: 5"),
                 ["expected the defaults: a mapping of inputs, dtype, found one word"],
                 id="defaults: 5"),
    pytest.param(inputs("float32 1x3") + "    transforms: {t: {tile: {tile: 16}, limits: {params: 1}}}",
                 ["unknown key 'tile' in 'tile': did you mean 'products'?"], id="one typo is one problem"),
    pytest.param(inputs("float32 1x3") + "    transforms: {t: {quantize: {bits: 8}, limits: {params: 1}}}",
                 ["unknown key 'bits' in 'quantize': did you mean 'weights'?"], id="bits of the weights"),
    pytest.param(inputs("float32 1x3") + "    transforms: {t: {fold_batchnorm: , limits: {params: 1}}}",
                 ["expected 'fold_batchnorm': {}, since it has no keys, found nothing"], id="a transform of nothing"),
    *(
        pytest.param(inputs("float32 1x3") + f"    transforms: {{t: {{steps: {steps}, equivalence: exact_algebra}}}}",
                     [f"{place}: {said}"], id=f"steps: {steps}")
        for steps, place, said in (
            ("[]", "7:29", "steps is empty: name at least one"),
            ("fold_batchnorm", "7:29", "expected steps: a list such as [fold_batchnorm, export_onnx], found one word"),
            ("[folded]", "7:30", "unknown key 'folded' in a step"),
            ("[{compare: {torch: a:b}}]", "7:31", "unknown key 'compare' in a step"),
            ("[{tile: {products: 8}, apply: a:b}]", "7:52", "'apply' and 'tile' exclude each other"),
            ("[export_onnx, export_onnx]", "7:43", "'export_onnx' knows models under torch, not under onnx"),
            ("[{quantize: {}, equivalence: custom}]", "7:45", "'custom' declares no bound: give one"),
        )
    ),
    pytest.param(limits("\n      params:5 k"), ["found one word: write 'params: 5 k', with a blank behind the colon"],
                 id="a colon without a blank"),
    pytest.param("model_budget: 1\nmodels: {net: torch:nets:small}",
                 ["write 'torch: nets:small', with a blank behind the colon"], id="a model's key without a blank"),
    pytest.param("model_budget: 1\nmodels:\n  net:\n  torch: nets:small\n  limits: {params: 5}",
                 ["4:3: 'torch' is a key of a model: indent it below the name of one",
                  "5:3: 'limits' is a key of a model: indent it below the name of one"], id="keys too far left"),
    pytest.param(inputs("float32 1x3") + "    transforms: {tile_linear: {edge: pad}}",
                 ["'tile_linear' is a key of a transform: indent it below the name of one"], id="no name"),
    *(
        pytest.param(inputs("float32 1x3") + f"    {key}: {{}}", [f"'{key}' in a model: did you mean 'transforms'?"],
                     id=f"{key} of a model")
        for key in ("compare", "tile_linear", "equivalence")
    ),
    pytest.param(limits("{ops: {deny: aten::lstm}}"), ["5:26: expected a list of op kinds", "found one word"],
                 id="colons of a name"),
    pytest.param(limits("{macs: {max: 1, allow_unmeasured: [foo]}}"), ["5:48: 'foo' is no op name"],
                 id="op name"),
    pytest.param(limits("{arithmetic_intensity: {min: 1, allow_unmeasured: [a::b]}}"),
                 ["5:45: a ratio over unmeasured ops is never known"], id="allowing in a ratio"),
    pytest.param(limits("{ops: 20}"), ["5:19: expected limits on ops"], id="ops: 20"),
    pytest.param(limits("{ops: {max: 20}}"), ["5:25: expected a mapping of op kinds"],
                 id="ops: {max: 20}"),
    pytest.param(limits("{ops: {level: warn}}"), ["5:14: 'ops' has none of the keys allow, deny, max"], id="no ops"),
    pytest.param(limits("{ops: {deny: [lstmm]}}"), ["5:27: no op rule knows 'lstmm': did you mean "
                 "'lstm'?"], id="unknown kind"),
    *(
        pytest.param(
            VISION.replace("torchvision.models:resnet18", word),
            [f"'{word}' is no module:attribute: did you mean {meant}?"],
            id=word,
        )
        for word, meant in {
            "mynets.Net": "mynets:Net", "./my/net.py": "my.net:CALLABLE", "my/n.py:N": "my.n:N",
            "mynets:Net()": "mynets:Net", "mynets.Net(8)": "mynets:Net", "./my/n.py:N()": "my.n:N",
            "mynets:load('a/b.pt')": "mynets:load",
        }.items()
    ),
    pytest.param(limits("{ops: {deny: [Conv]}}"), ["did you mean 'convolution', or onnx::Conv, "
                 "com.microsoft.nchwc::Conv alone? (modelbudget ops lists all)"], id="a name of ONNX's"),
    pytest.param(limits("{ops: {max: {RELU: 1}}}"), ["did you mean 'relu', or aten::relu, onnx::Relu"],
                 id="a kind in capitals"),
    pytest.param(limits("{peak_memory: 1 MB}"), ["did you mean 'peak_activation'?"], id="another word for a metric"),
    pytest.param(limits("{ops: {deny: [aten::lstmm]}}"), ["did you mean 'aten::lstm'?"],
                 id="unknown foreign name"),
    pytest.param(limits("{ops: {max: {lstm: 1.5}}}"), ["5:32: lstm: '1.5'"], id="half an op"),
    pytest.param(limits("{ops: {allow: []}}"), ["5:27: allow is empty: name at least one"], id="allow nothing"),
    *(
        pytest.param(limits(f"{{{key}: 1}}"),
                     [f"5:14: '{key}' is no key of limits: it is measured of a model on a device: put it under"],
                     id=key)
        for key in ("peak_activation_best", "activation_arena", "latency_bound", "array_cycles")
    ),
    pytest.param(inputs("float32 1x3") + "    fits: x", ["7:5: 'fits' is no key of a model: a model fits"],
                 id="fits"),
    *(
        pytest.param(inputs("float32 1x3") + f"    statistics: {{some: {words}}}\n", problems, id=f"statistics {words}")
        for words, problems in {
            "{}": ["7:18: 'some' has none of the keys dead_channels, zeros,"],
            "{layers: a.*}": ["7:18: 'some' has none of the keys dead_channels"],
            "{zeroes: 5%}": ["7:25: unknown key 'zeroes' in a statistics check: did you mean 'zeros'?"],
            "{zeros: 500%}": ["7:32: expected zeros: a number from 0 to 1, or a share such as 5%, found '500%'"],
            "{dead_channels: 0.5}": ["7:40: expected dead_channels: a whole number such as 0, found '0.5'"],
            "{max_abs: -1}": ["7:34: expected max_abs: a number such as 1e-3, found '-1'"],
            "{max_abs: 1, sigmas: 0}": ["7:45: expected sigmas: a number above 0 and below 1000"],
            "{max_abs: 1, layers: []}": ["7:45: layers is empty: name at least one"],
            "{max_abs: 1, inputs: x.txt}": ["7:45: 'x.txt' is no inputs: write data/file.npz"],
            "{max_abs: 1, inputs: x.npy, seeds: [1]}": ["7:52: 'seeds' draw inputs, and 'inputs' bring them"],
        }.items()
    ),
    *(
        pytest.param(inputs("float32 1x3") + f"    runtime: {words}\n", problems, id=f"runtime {words}")
        for words, problems in {
            "x": ["7:14: expected runtime: a mapping of latency, throughput, roofline_share, peak_memory"],
            "{}": ["7:5: 'runtime' has none of the keys latency, throughput, roofline_share, peak_memory: give"],
            "{device: cuda}": ["7:5: 'runtime' has none of the keys"],
            "{latency: 1.5}": ["7:24: latency: '1.5' has no unit and could mean 1.5 s or 1.5 ms"],
            "{latency: 0 ms}": ["7:24: latency: '0 ms' is nothing: write an amount such as 20 ms"],
            "{latency: {}}": ["7:15: 'latency' has none of the keys max, grow: give one"],
            "{latency: {grow: 0%}}": ["7:31: grow: '0%' is nothing: write an amount such as 5%"],
            "{throughput: 50}": ["7:27: expected throughput: a mapping such as {min: 50 call/s}, found one word"],
            "{throughput: {max: 50}}": ["7:28: unknown key 'max' in a limit on throughput: known are min"],
            "{roofline_share: {min: 30%}}":
                ["7:15: roofline_share needs this machine's profile: write hardware: NAME"],
            "{roofline_share: {min: 30%}, hardware: cortex_m44}":
                ["7:53: there is no device 'cortex_m44': did you mean 'cortex_m4'?"],
            "{peak_memory: 20 mb}": ["7:28: peak_memory: '20 mb' could mean 20 MB"],
            "{latency: 1 s, device: gpu}": ["7:37: 'gpu' is no device: did you mean 'cpu'?"],
            "{latency: 1 s, repeats: 0}": ["7:38: repeats of 0: it must be 1 to 10,000"],
        }.items()
    ),
    pytest.param(VISION.replace("{torchscript:", "{dtype: float16, torchscript:"),
                 ["18:14: 'dtype' converts modules, and torchscript: names a file: save it in"],
                 id="dtype of a file"),
    pytest.param(VISION.replace("{dims: {batch: 8},", "{dtype: float16, dims: {batch: 8},"),
                 ["24:16: 'dtype' converts modules, and exported: names a file: save it in"],
                 id="dtype of a file's variant"),
    pytest.param(VISION.replace("defaults:", "defaults:\n  level: warn"),
                 ["3:3: 'level' is no key of the defaults: write it on a limit"], id="a level of all models"),
    pytest.param("hardware: 1\ndevices: {}\n", ["1:1: a hardware file, and no budget: name it"], id="only hardware"),
    pytest.param(VISION + "hardware: {}", ["25:11: expected hardware: the path of a file of devices"], id="hardware"),
    pytest.param(VISION.replace("{params: 8.4 M}", "{peak_activation: 1 MB}"),
                 ["15:18: 'peak_activation' is no key of limits: of a part of a model it is not defined"], id="peak"),
    pytest.param(VISION.replace("{params: 8.4 M}", "{arithmetic_intensity: 1}"),
                 ["15:18: 'arithmetic_intensity' is no key of limits: of a part"], id="ratio of scope"),
    pytest.param(VISION.replace("layer4.*:", "'a::b':"), ["15:7: 'a::b' is no glob"], id="glob"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BROKEN)
def test_broken(problems: Problems, text: str | bytes, said: list[str]) -> None:
    """A broken budget is refused with place and way out."""
    found = problems(text)
    assert found
    for expected in said:
        assert any(expected in line for line in found), found


@pytest.mark.parametrize("typo", ["input: float32 1x3x224x224", "inputs: float23 1x3"])
def test_a_typo_under_defaults_is_one_problem(problems: Problems, typo: str) -> None:
    """Models that wait for the defaults' inputs are not told that they have none."""
    (problem,) = problems(VISION.replace("inputs: float32 1x3x224x224\nmodels", f"{typo}\nmodels"))
    assert problem.startswith("3:")


MISSPELT = {
    VISION.replace("models:", "modles:"): "4:1: unknown key 'modles' in a budget file: did you mean 'models'?",
    limits("{params: 5}").replace("torch:", "pytorch:"): "4:5: unknown key 'pytorch' in a model: did you mean 'torch'?",
    limits("{params: 5}").replace("limits:", "limts:"): "5:5: unknown key 'limts' in a model: did you mean 'limits'?",
    inputs("{x: {dtyp: float32, shape: [1, 3]}}"): "6:18: unknown key 'dtyp' in an input: did you mean 'dtype'?",
    limits("{peak: 5 MB}"): "5:14: unknown key 'peak' in limits: did you mean 'peak_activation'?",
}


@pytest.mark.parametrize(("text", "said"), MISSPELT.items(), ids=["models", "torch", "limits", "dtype", "peak"])
def test_a_misspelt_key_is_one_problem(problems: Problems, text: str, said: str) -> None:
    """What it was meant for is not said to be missing, too."""
    assert problems(text) == [said]


def test_all_problems_at_once(problems: Problems) -> None:
    """Every problem of a file is reported, in the order of the file, and none twice."""
    text = VISION.replace("11.7 M", "11,7 M").replace("level: warn", "level: wran")
    text = text.replace("  scripted: {torchscript", "  'a@b': {torchscipt")
    assert [line.partition(": ")[0] for line in problems(text)] == ["9:15", "11:39", "18:3", "18:11"]


def test_the_colons_of_a_name_are_none_of_a_key(problems: Problems) -> None:
    """Where a list is missing around an operator's name, its colons stay as they are."""
    (problem,) = problems(limits("{ops: {deny: aten::lstm}}"))
    assert problem.endswith("found one word")
