import numpy as np

from allreduce_edu.data import digits


def test_the_digits_are_all_there():
    d = digits()
    assert d.x.shape == (1437, 64)
    assert d.x_test.shape == (360, 64)
    assert len(d.y) + len(d.y_test) == 1797
    assert d.x.dtype == np.float32
    assert (d.x.min(), d.x.max()) == (0, 1)
    counts = np.bincount(np.concatenate([d.y, d.y_test]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_shuffle_is_fixed_by_its_seed():
    assert np.array_equal(digits().x, digits().x)
    assert not np.array_equal(digits(0).x, digits(1).x)
    assert repr(digits()) == "Digits(1,437 images to train on, 360 to test)"


def test_an_image_looks_like_its_label():
    d = digits()
    zero, one = (d.x[d.y == k].mean(0).reshape(8, 8) for k in (0, 1))
    assert zero[3:5, 3:5].mean() < 0.3 < one[3:5, 3:5].mean()
