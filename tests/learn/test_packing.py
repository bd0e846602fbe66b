import pytest
import safetensors.torch
import torch

from fedperl.learn.packing import packed


def test_a_packed_state_is_a_safetensors_file_and_always_the_same_one() -> None:
    state = {
        "b": torch.randn(3, 5)[:, ::2],
        "a": torch.tensor(7),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "half": torch.randn(3).to(torch.bfloat16),
        "none": torch.zeros(0, 4),
        "wide": torch.randn(2, dtype=torch.float64),
        "flag": torch.tensor([True, False]),
        "last": torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last),
    }
    content = packed(state, {"z": "1", "a": "2"})
    loaded = safetensors.torch.load(content)
    assert loaded.keys() == state.keys()
    for name, tensor in state.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)
    backwards = dict(reversed(state.items()))
    assert packed(backwards, {"a": "2", "z": "1"}) == content
    assert int.from_bytes(content[:8], "little") % 8 == 0
    assert packed({}) == b"\x08\0\0\0\0\0\0\0{}      "


def test_a_type_that_a_file_cannot_hold() -> None:
    with pytest.raises(ValueError, match="tensor 'c' is torch.complex64; wanted one of torch.float64"):
        packed({"c": torch.zeros(2, dtype=torch.complex64)})
