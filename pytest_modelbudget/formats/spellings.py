"""Element types and sizes of inputs as people spell them."""

import re

FLOATING = ("float16", "bfloat16", "float32", "float64")
INTEGER = ("int8", "int16", "int32", "int64", "uint8")
SHORT = {
    "fp16": "float16", "half": "float16", "bf16": "bfloat16",
    "fp32": "float32", "fp64": "float64", "double": "float64",
}  # fmt: skip
# What torch says for them; numpy means other types by some of these words, so they are suggested and not taken.
ALSO_CALLED = {
    "float32": ("float",), "int64": ("long",), "int32": ("int",), "int16": ("short",), "uint8": ("byte",),
    "float16": ("half",), "float64": ("double",),
}  # fmt: skip
DTYPES = (*FLOATING, *INTEGER, "bool", "complex64", "complex128")
EXAMPLE = "float32 1x3x224x224"

_LIST = r"[0-9]+(?:\s*,\s*[0-9]+)*"
# dtype, then sizes: "1x3x224x224", "1,3,224,224", "(1, 3, 224, 224)", "[1, 3, 224, 224]", or a scalar's "()" or "[]".
SPEC_PATTERN = (
    rf"([A-Za-z][A-Za-z0-9]*)(\s+(?:[0-9]+(?:x[0-9]+)*|{_LIST})"
    rf"|\s*\[\s*(?:{_LIST})?\s*\]|\s*\(\s*(?:{_LIST}\s*,?)?\s*\))"
)
# Sizes without a type are of float32; one alone would be a plain number.
SIZES_ALONE = rf"[0-9]+(?:x[0-9]+)+|[0-9]+(?:\s*,\s*[0-9]+)+|\(\s*{_LIST}\s*,?\s*\)|\[\s*{_LIST}\s*\]"


def dtype_and_sizes(spec: str) -> tuple[str, str] | None:
    """("float32", "1x3") of one tensor in words; None of what is none."""
    match = re.fullmatch(f"{SPEC_PATTERN}|{SIZES_ALONE}", spec)
    return (match[1] or "float32", "x".join(re.findall("[0-9]+", match[2] or spec))) if match else None


def odd_size(spec: str) -> str:
    """The first size that is no number, such as an open batch of -1 or N, behind a type; else ""."""
    dtype, sizes = re.fullmatch(r"([a-z]*[0-9]*)(.*)", spec).groups()  # type: ignore[union-attr]  # it matches all
    parts = re.split(r"\s*[x×*,]\s*", sizes.strip("[]() ")) if dtype in DTYPES else []
    are_sizes = len(parts) > 1 and all(re.fullmatch(r"-?\w+", part) for part in parts)
    return next((part for part in parts if not part.isdecimal()), "") if are_sizes else ""


def other_spelling(spec: str) -> str:
    """The spec that a text is but for signs between sizes, or an order, that others use; else ""."""
    words = re.fullmatch(r"(?:torch\.)?([a-z]+[0-9]*)[\s:=,\[(]+(.+)|(.+?)\s+(?:torch\.)?([a-z]+[0-9]*)", spec)
    dtype, sizes = (words[1] or words[4], words[2] or words[3]) if words else ("float32", spec)
    dtype = SHORT.get(dtype, dtype)
    is_shape = re.fullmatch(r"[\[(\s]*[0-9]+(?:\s*[xX×*,]\s*[0-9]+)*\s*,?[\])\s]*", sizes)
    is_number = words is None and spec.isdecimal()  # a plain value, more likely than a size alone
    return f"{dtype} {'x'.join(re.findall('[0-9]+', sizes))}" if dtype in DTYPES and is_shape and not is_number else ""
