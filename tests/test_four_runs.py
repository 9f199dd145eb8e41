"""Four runs with equal hashes: the judge knows which two are wrong, and what mends them."""

import pytest

from allreduce_edu.lessons.museum.four_runs import RUNS, four_runs

SORTED = {"A": "wrong", "B": "right", "C": "wrong", "D": "right"}
A, C = RUNS["A"].source, RUNS["C"].source
_PART = "torch.randperm(len(images))[: len(images) // ranks]"
_QUARTER = "0.25 times that of one process"
MENDS = {
    "nothing divided": A.replace("(loss / ranks)", "loss"),
    "a part of its own": C.replace(_PART, "range(rank, len(images), ranks)"),
    "blocks": C.replace(_PART, "torch.arange(len(images)).chunk(ranks)[rank]"),
    "one order for all": C.replace(
        f"mine = {_PART}", "torch.manual_seed(1)\n        mine = torch.randperm(64)[rank::ranks]"
    ),
}
TRIED = {
    "learning rate times N": (
        A.replace("lr=0.1", "lr=0.1 * ranks"),
        _QUARTER,
    ),
    "broadcast in every step": (
        A + "        for p in model.parameters():\n            dist.broadcast(p.data, 0)\n",
        _QUARTER,
    ),
    "one seed": (
        C.replace("        mine =", "        torch.manual_seed(0)\n        mine ="),
        "48 went through the model on no rank",
    ),
    "each rank the whole batch": (C.replace(_PART, "range(len(images))"), "it does too much"),
    "no step": (A.replace("(loss / ranks).backward()", "pass"), "no parameter has a gradient"),
    "as it was": (A, "A is unchanged"),
    "one that is right": (RUNS["B"].source, "B has been right all along"),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_ranks_of_each_run_agree_to_the_last_bit(name):
    seen = RUNS[name].train(20)
    assert len(seen.hashes) == 4
    assert len(set(seen.hashes)) == 1


@pytest.mark.parametrize("name", RUNS)
def test_the_oracle_parts_right_from_wrong(name):
    step = RUNS[name].one_step()
    assert step.wing == (None if SORTED[name] == "right" else "wrong")


def test_the_loss_shows_one_of_the_two_faults():
    loss = {name: run.train().loss for name, run in RUNS.items()}
    assert loss["A"] > 1.5 * loss["B"]
    assert abs(loss["C"] / loss["B"] - 1) < 0.05
    assert abs(loss["D"] / loss["B"] - 1) < 1e-4


@pytest.mark.parametrize("name", MENDS)
def test_what_mends_a_run_passes(name):
    verdict = four_runs(SORTED, MENDS[name])
    assert verdict.ok, verdict


@pytest.mark.parametrize("name", TRIED)
def test_what_does_not_mend_it_is_told_why(name):
    mended, why = TRIED[name]
    verdict = four_runs(SORTED, mended)
    assert not verdict.ok
    assert why in verdict.why


@pytest.mark.parametrize("name", RUNS)
def test_a_run_in_the_wrong_place_is_named(name):
    other = {"right": "wrong", "wrong": "right"}
    verdict = four_runs({**SORTED, name: other[SORTED[name]]}, MENDS["nothing divided"])
    assert not verdict.ok
    assert verdict.why.startswith(f"{name} is not {other[SORTED[name]]}")


def test_a_run_that_is_not_sorted_is_told():
    assert 'says["B"] must be "right" or "wrong", got None' in four_runs({"A": "wrong"}, A).why
