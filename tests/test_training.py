import numpy as np
import pytest

from allreduce_edu.data import digits
from allreduce_edu.lessons.training import gradient_shares, initial_weights, loss_and_gradient


def test_gradients_are_torchs():
    torch = pytest.importorskip("torch")
    d, w = digits(), initial_weights()
    loss, grad = loss_and_gradient(w, d.x[:16], d.y[:16])
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    torch.nn.utils.vector_to_parameters(torch.from_numpy(w), model.parameters())
    out = torch.nn.functional.cross_entropy(
        model(torch.from_numpy(d.x[:16])), torch.from_numpy(d.y[:16])
    )
    out.backward()
    want = torch.cat([p.grad.ravel() for p in model.parameters()]).numpy()
    assert loss == pytest.approx(out.item(), abs=1e-6)
    np.testing.assert_allclose(grad, want, atol=1e-6)


def test_the_mean_of_the_shares_is_the_gradient_of_the_whole_batch():
    d = digits()
    shares = gradient_shares(4, batch=16)
    whole = loss_and_gradient(initial_weights(), d.x[:64], d.y[:64])[1]
    np.testing.assert_allclose(shares.mean(0), whole, atol=1e-6)
    assert shares.dtype == np.float32
    assert len({share.tobytes() for share in shares}) == 4


def test_a_few_steps_learn():
    d, w = digits(), initial_weights()
    first, _ = loss_and_gradient(w, d.x, d.y)
    for _ in range(30):
        w = w - np.float32(0.5) * loss_and_gradient(w, d.x, d.y)[1]
    assert loss_and_gradient(w, d.x_test, d.y_test)[0] < first / 2


def test_bad_numbers_are_named():
    with pytest.raises(ValueError, match="ranks must be an integer >= 1, got 0"):
        gradient_shares(0)
    with pytest.raises(ValueError, match="at most 1437 images, got 100 x 16"):
        gradient_shares(100)
