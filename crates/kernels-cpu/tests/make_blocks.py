"""Writes blocks.bin: for each weight type, 256 weights as blocks and as f32.

The f32 values come from the `gguf` Python package (pip install gguf numpy).
Layout: for each type in TYPES, the bytes of the blocks, then 256 little-endian f32.
"""

import pathlib

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type

# Type, and where a block has f16 values.
TYPES = [
    (Type.F16, None),
    (Type.BF16, None),
    (Type.Q4_0, [0]),
    (Type.Q4_1, [0, 2]),
    (Type.Q5_0, [0]),
    (Type.Q5_1, [0, 2]),
    (Type.Q8_0, [0]),
    (Type.Q2_K, [80, 82]),
    (Type.Q3_K, [108]),
    (Type.Q4_K, [0, 2]),
    (Type.Q5_K, [0, 2]),
    (Type.Q6_K, [208]),
    (Type.IQ4_NL, [0]),
    (Type.IQ4_XS, [0]),
    (Type.TQ1_0, [52]),
    (Type.TQ2_0, [64]),
    (Type.IQ1_S, [0]),
    (Type.IQ2_XXS, [0]),
    (Type.IQ2_XS, [0]),
    (Type.IQ2_S, [0]),
    (Type.IQ3_XXS, [0]),
    (Type.IQ3_S, [0]),
]


def main():
    rng = np.random.default_rng(7)
    out = bytearray()
    for ty, halves in TYPES:
        block_len, block_bytes = GGML_QUANT_SIZES[ty]
        n_blocks = 256 // block_len
        if halves is None:
            values = rng.normal(size=256).astype(np.float32)
            data = quants.quantize(values, ty).view(np.uint8).reshape(-1)
        else:
            data = rng.integers(0, 256, (n_blocks, block_bytes), dtype=np.uint8)
            for at in halves:
                scale = (rng.normal(size=(n_blocks, 1)) * 0.01).astype(np.float16)
                data[:, at : at + 2] = scale.view(np.uint8)
            data = data.reshape(-1)
        if ty == Type.F16:
            weights = data.view(np.float16).astype(np.float32)
        else:
            weights = quants.dequantize(data, ty).reshape(-1)
        assert weights.shape == (256,) and np.isfinite(weights).all()
        out += data.tobytes() + weights.astype("<f4").tobytes()
    (pathlib.Path(__file__).parent / "blocks.bin").write_bytes(out)


main()
