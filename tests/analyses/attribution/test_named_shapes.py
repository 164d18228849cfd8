"""Types and shapes in the names of tensors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from vramlens.analyses.attribution.named_shapes import Shape, shape_in


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("float32[8, 1024] tensor", Shape("float32", (8, 1024))),
        ("bfloat16[32, 1024, 768] slice", Shape("bfloat16", (32, 1024, 768))),
        ("RK4.y0 (slice float32[4096, 64])", Shape("float32", (4096, 64))),
        ("int64[256, 120] tensor", Shape("int64", (256, 120))),
        ("model.layers.0.weight", None),
        ("Buffer.rows[3]", None),
        ("float32 tensor", None),
        ("float32[] tensor", None),
        ("float8_e4m3fn[7] tensor", Shape("float8_e4m3fn", (7,))),
        ("float32[0, 5] tensor", Shape("float32", (0, 5))),
        ("float32[999999999999999999999, 1] tensor", None),  # no device holds it
        ("float32[999999999999999999999, 0] tensor", None),
        ("float99999[5] tensor", None),
    ],
)
def test_the_shape_that_a_name_ends_with(name: str, shape: Shape | None) -> None:
    assert shape_in(name) == shape


def test_bytes() -> None:
    assert Shape("float32", (8, 1024)).bytes == 32768
    assert Shape("complex128", (3,)).bytes == 48
    assert Shape("bfloat16", (5, 2)).bytes == 20
    assert Shape("float8_e4m3fn", (7,)).bytes == 7


@given(some.text(max_size=80))
def test_any_name_is_read(name: str) -> None:
    shape = shape_in(name)
    assert shape is None or str(shape).startswith(shape.type)
