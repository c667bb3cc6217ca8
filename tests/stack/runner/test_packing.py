import numpy as np
import torch

from stack.runner.packing import Packer


def test_arrays_come_back_by_name_with_type_and_values():
    packer = Packer(torch.device("cpu"), 256)
    arrays = {
        "a": np.arange(3, dtype=np.int32),
        "none": np.zeros(0, dtype=np.int32),
        "b": np.array([2**40, -1], dtype=np.int64),
        "c": np.array([0.5, 1.5], dtype=np.float32),
    }
    packer.pack(arrays)
    views = packer.transfer()()
    assert {name: view.dtype for name, view in views.items()} == {
        "a": torch.int32,
        "none": torch.int32,
        "b": torch.int64,
        "c": torch.float32,
    }
    assert all(views[name].tolist() == array.tolist() for name, array in arrays.items())


def test_a_step_larger_than_the_buffer_makes_it_grow():
    packer = Packer(torch.device("cpu"), 64)
    packer.pack({"a": np.arange(1000, dtype=np.int64)})
    first = packer.transfer()
    packer.pack({"a": np.arange(1000, 1010, dtype=np.int64)})
    assert packer.transfer()()["a"].tolist() == list(range(1000, 1010))
    assert first is not None


def test_all_parts_live_in_one_buffer_so_that_one_copy_moves_them():
    packer = Packer(torch.device("cpu"), 4096)
    packer.pack({"a": np.arange(3, dtype=np.int32), "b": np.arange(5, dtype=np.int64)})
    views = packer.transfer()()
    assert views["a"].untyped_storage().data_ptr() == views["b"].untyped_storage().data_ptr()
