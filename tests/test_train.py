import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import cross_entropy  # noqa: E402

from allreduce_edu.realdist.train import (  # noqa: E402
    accuracy,
    fingerprint,
    flat,
    gradients,
    images,
    make_model,
)


def test_equal_seeds_give_equal_weights():
    a, b, c = make_model(), make_model(), make_model(1)
    assert fingerprint(a.parameters()) == fingerprint(b.parameters())
    assert fingerprint(a.parameters()) != fingerprint(c.parameters())


def test_the_global_random_state_is_left_alone():
    torch.manual_seed(5)
    before = torch.rand(1)
    torch.manual_seed(5)
    make_model()
    assert torch.equal(torch.rand(1), before)


@pytest.mark.parametrize("step", [0, 3, 30])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_the_ranks_images_are_those_of_one_process(step, ranks):
    parts = [images(rank, step, 16, ranks) for rank in range(ranks)]
    whole = images(0, step, 16 * ranks, 1)
    assert torch.equal(torch.cat([x for x, _ in parts]), whole[0])
    assert torch.equal(torch.cat([y for _, y in parts]), whole[1])


def test_fingerprints_see_one_bit():
    t = torch.zeros(3)
    u = t.clone()
    u[1] = -0.0
    assert torch.equal(t, u)
    assert fingerprint([t]) != fingerprint([u])


def test_training_alone_reads_most_digits():
    model = make_model()
    for step in range(150):
        x, y = images(0, step, 64, 1)
        model.zero_grad()
        cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.5 * p.grad)
    assert accuracy(model) > 0.8
    assert flat(gradients(model)).shape == (2410,)
