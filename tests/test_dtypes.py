import numpy as np
import pytest

from allreduce_edu.engine.dtypes import DTYPES, check_op, dtype, is_float, short_name


@pytest.mark.parametrize("name", DTYPES)
def test_short_names_go_there_and_back(name):
    assert short_name(dtype(name)) == name


def test_other_spellings():
    assert dtype("float32") == dtype(np.float32) == dtype("fp32") == np.float32
    assert short_name("torch.bfloat16") == "bf16"
    assert short_name("complex64") == "complex64"


def test_unknown_names_get_a_hint():
    with pytest.raises(ValueError, match="unknown dtype 'bf61'; did you mean 'bf16'"):
        dtype("bf61")


def test_bfloat16_counts_as_floating_point():
    assert is_float(dtype("bf16"))
    assert not is_float(np.dtype("int8"))
    check_op("avg", dtype("bf16"))
