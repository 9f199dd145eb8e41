import json

import numpy as np
import pytest

from allreduce_edu import ALGORITHMS, COLLECTIVES, Round, Schedule, contributions, frames, ring, run
from allreduce_edu.engine.algorithms import one_shot, parameter_server
from allreduce_edu.engine.cost import sent_bytes
from allreduce_edu.engine.dtypes import dtype
from allreduce_edu.engine.frames import MOST_CELLS
from allreduce_edu.engine.verify import starting


def play(f):
    """Apply the steps as a player does; return masks and values of every frame."""
    mask, value = list(f["start"]["mask"]), list(f["start"]["value"])
    seen = [(list(mask), list(value))]
    for step in f["steps"]:
        for cell, m, v in zip(step["cell"], step["mask"], step["value"], strict=True):
            mask[cell], value[cell] = m, v
        seen.append((list(mask), list(value)))
    return seen


@pytest.mark.parametrize("name", [*ALGORITHMS, *COLLECTIVES])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 16])
def test_the_last_frame_is_what_contributions_say(name, n):
    s = (ALGORITHMS | COLLECTIVES)[name](n)
    if s.ranks * s.chunks > MOST_CELLS:
        with pytest.raises(ValueError, match="a picture shows at most 16 ranks and 1,024 cells"):
            frames(s)
        return
    f = frames(s)
    mask, _ = play(f)[-1]
    want = ((contributions(s) > 0).astype(int) << np.arange(n)).sum(-1).ravel()
    idle = set(np.flatnonzero(~starting(s)).tolist()).difference(*(t["cell"] for t in f["steps"]))
    want[list(idle)] = 0  # neither sent, nor received, nor asked for
    assert mask == want.tolist()
    assert all(goal in (-1, m) for goal, m in zip(f["goal"], mask, strict=True))
    assert json.loads(json.dumps(f)) == f
    assert not any(step["wrong"] or step["wrong_cells"] for step in f["steps"])


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("binomial_broadcast", ["1", "", ""]),
        ("scatter", ["1", "2", "3", "", "", "", "", "", ""]),
        ("gather", ["1", "", "", "", "20", "", "", "", "300"]),
        ("binomial_reduce", ["1", "10", "100"]),
    ],
)
def test_the_start_shows_only_what_can_matter(name, start):
    f = frames(COLLECTIVES[name](3))
    assert f["start"]["value"] == start
    assert [mask > 0 for mask in f["start"]["mask"]] == [value != "" for value in start]


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("sum", "2.5 + 2 = 4.5"),
        ("avg", "2.5 + 2 = 4.5"),
        ("max", "max(2.5, 2) = 2.5"),
        ("min", "min(2.5, 2) = 2"),
        ("prod", "2.5 × 2 = 5"),
    ],
)
def test_log_and_values_are_those_of_the_op(op, said):
    x = np.array([[2.0, 1.0, 4.0], [2.5, 8.0, 3.0], [9.0, 6.5, 7.0]])
    f = frames(ring(3), x, op)
    assert f["steps"][0]["log"][0] == f"rank 0 → rank 1, chunk 0: {said}"
    sums = run(ring(3), x, "sum" if op == "avg" else op)
    assert play(f)[-1][1] == [f"{v:.3g}" for v in sums.ravel()]
    assert ("divided by 3 after the last round" in f["note"]) == (op == "avg")


def test_a_rank_that_only_serves_starts_with_nothing():
    f = frames(parameter_server(3, servers=2))
    mask, value = play(f)[0]
    assert mask == [1, 1, 2, 2, 4, 4, 0, 0, 0, 0]
    assert value[6:] == ["0"] * 4
    mask, value = play(f)[-1]
    assert mask[:6] == [7] * 6
    assert value[:6] == ["111", "222"] * 3
    assert f["steps"][0]["log"][2] == "rank 1 → rank 3, chunk 0: 1 + 10 = 11"


def test_its_own_share_in_its_turn_is_no_message():
    step = frames(one_shot(3))["steps"][0]
    assert list(zip(step["src"], step["dst"], strict=True)) == [
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 2),
        (2, 0),
        (2, 1),
    ]
    assert step["log"][-1] == "rank 2 → rank 1, chunk 0: 11 + 100 = 111"
    assert step["sent"] == [2, 2, 2]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_last_values_are_the_sums(name):
    s = ALGORITHMS[name](4)
    _, value = play(frames(s))[-1]
    assert value == [str((c + 1) * 1111) for _ in range(4) for c in range(s.chunks)]


def test_the_log_writes_the_sums_out():
    first, *_, last = frames(ring(4))["steps"]
    assert first["log"][0] == "rank 0 → rank 1, chunk 0: 10 + 1 = 11"
    assert last["log"][0] == "rank 0 → rank 1, chunk 3: copy 4444"


def test_the_meter_counts_in_s_without_data_and_bytes_with():
    assert frames(ring(4))["steps"][-1]["sent"] == [1.5, 1.5, 1.5, 1.5]
    assert frames(ALGORITHMS["parameter_server"](4))["steps"][-1]["sent"] == [3, 1, 1, 1]
    assert frames(ring(4))["full"] == frames(ring(4, 8))["full"] == 3
    x = np.zeros((4, 10), "f4")
    f = frames(ring(4), x)
    assert (f["unit"], f["full"]) == ("bytes", 3 * 40)
    sizes = ring(4).cut(10, 4) * 4
    assert f["steps"][-1]["sent"] == sent_bytes(ring(4), sizes).tolist()


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int64"])
def test_real_data_shows_one_element_of_each_chunk(kind):
    x = np.random.default_rng(0).normal(50, 9, (3, 9)).astype(dtype(kind))
    f = frames(ring(3), x)
    out = run(ring(3), x)
    want = [v if isinstance(v, int) else f"{v:.3g}" for v in out[:, ::3].ravel().tolist()]
    assert play(f)[-1][1] == [str(v) for v in want]
    assert kind in f["note"]


def test_the_element_shown_is_the_first_that_is_zero_on_no_rank():
    x = np.array([[0, 1, 2, 0, 0, 5.5], [1, 0, 3, 4, 0, 7]])
    assert frames(ring(2), x)["start"]["value"] == ["2", "5.5", "3", "7"]


def test_torch_data_give_the_same_frames():
    torch = pytest.importorskip("torch")
    x = torch.arange(12).reshape(3, 4).to(torch.bfloat16)
    assert frames(ring(3), x) == frames(ring(3), x.float().numpy().astype(dtype("bf16")))


def test_sizes_smaller_than_the_ranks_and_zero():
    for size in (0, 1, 2):
        assert len(frames(ring(4), np.zeros((4, size)))["steps"]) == 6


def test_a_wrong_ring_shows_where_it_goes_wrong():
    r = np.arange(3)
    s = Schedule(
        "adds twice",
        3,
        3,
        lambda: [Round.of(r, (r + 1) % 3, (r - k) % 3, True) for k in range(4)],
    )
    steps = frames(s)["steps"]
    assert steps[0]["wrong"] == steps[1]["wrong"] == []
    assert steps[2]["wrong"][0] == "rank 0, chunk 0 holds rank 0's share twice"
    assert steps[2]["twice"] == [1, 2, 4]
    assert steps[-1]["wrong_cells"]


def test_a_round_that_never_comes_is_wrong_in_the_last_frame():
    r = np.arange(3)
    s = Schedule("half", 3, 3, lambda: [Round.of(r, (r + 1) % 3, r, True)])
    (step,) = frames(s)["steps"]
    assert len(step["wrong_cells"]) == 9
    assert step["wrong"][-1] == "and 6 more cells"


def test_cells_without_meaning_are_never_wrong():
    s = Schedule(
        "reduce, twice over",
        3,
        1,
        lambda: [Round.of(1, 0, 0, True), Round.of([0, 2], [1, 0], 0, True)],
        collective="reduce",
        root=0,
    )
    assert not any(step["wrong_cells"] for step in frames(s)["steps"])


def test_what_is_mended_later_was_not_wrong_for_good():
    r = np.arange(4)
    surplus = Schedule(
        "surplus",
        4,
        4,
        lambda: [
            *(Round.of(r, (r + 1) % 4, (r - k) % 4, True) for k in range(4)),
            *(Round.of(r, (r + 1) % 4, (r + 1 - k) % 4, False) for k in range(3)),
        ],
    )
    assert not any(step["wrong_cells"] for step in frames(surplus)["steps"])


def test_words_are_no_numbers():
    with pytest.raises(TypeError, match="unsupported dtype object"):
        frames(ring(2), np.array([[None], [None]]))


def test_the_sentence_says_round_transfers_and_progress():
    said = [step["say"] for step in frames(ring(4))["steps"]]
    assert said[0].startswith("Round 1 of 6, adding: rank 0 sends chunk 0 to rank 1, ")
    assert said[2].endswith("4 of 16 cells are complete.")
    assert said[5].endswith("16 of 16 cells are complete.")
    assert "64 transfers" in frames(ring(16, 64))["steps"][0]["say"]


@pytest.mark.parametrize("schedule", [ring(17), ring(16, 80)])
def test_too_much_for_a_picture(schedule):
    with pytest.raises(ValueError, match="a picture shows at most 16 ranks and 1,024 cells"):
        frames(schedule)
