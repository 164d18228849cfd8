"""Whose a file is, by its path on whichever system."""

from __future__ import annotations

import pytest

from vramlens.ground.place import is_user_file, path_in_packages


@pytest.mark.parametrize(
    ("file", "inside"),
    [
        (
            "/opt/lib/python3.12/site-packages/torch/nn/modules/linear.py",
            "torch/nn/modules/linear.py",
        ),
        ("/usr/local/lib/python3.12/dist-packages/safetensors/torch.py", "safetensors/torch.py"),
        ("/usr/lib/python3/dist-packages/six.py", "six.py"),
        (r"C:\Python312\Lib\site-packages\peft\mapping.py", r"peft\mapping.py"),
        ("/env/site-packages/tool/site-packages/torch/hub.py", "torch/hub.py"),
        ("/home/user/train.py", ""),
        ("/home/user/my-packages/torch.py", ""),
    ],
)
def test_the_part_of_a_path_that_is_a_packages(file: str, inside: str) -> None:
    assert path_in_packages(file) == inside
    assert is_user_file(file) == (not inside)
