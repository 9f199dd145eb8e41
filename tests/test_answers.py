import numpy as np
import pytest

from allreduce_edu import (
    Predict,
    Round,
    Schedule,
    binomial_reduce,
    explain,
    naive,
    parameter_server,
    recursive_doubling,
    ring,
    run,
    spmd,
)
from allreduce_edu.engine.algorithms import gloo_ring, ring_reduce_scatter
from allreduce_edu.lessons import answers, questions
from allreduce_edu.lessons.family import FAMILY, WAYS, broadcast
from allreduce_edu.lessons.replicas import train
from allreduce_edu.lessons.rings import always_adding, turned_round


def left_on_rank_2(collective):
    x = np.full((4, 4), 10 ** np.arange(4)[:, None])
    return answers.left_by_reduce(x, run(FAMILY[collective].make(4), x), rank=2)


def hang(schedule):
    def program(comm, x):
        if comm.rank != 2:
            spmd.play(schedule, comm, x)

    return spmd.hang(program, np.ones((4, 4)))


X = np.random.default_rng(0).normal(size=(4, 103)).astype("f4")
ALONE, ONCE = train(sync="none"), train(sync="weights", every=300)


@pytest.mark.parametrize(
    ("question", "answer", "want"),
    [
        (questions.WHO_IS_IN_CHARGE, answers.in_charge(ring(4)), "none"),
        (questions.WHO_IS_IN_CHARGE, answers.in_charge(parameter_server(4)), "rank 0"),
        (questions.HOT_PORT, answers.hot_port(parameter_server(4)), "3 S"),
        (questions.HOT_PORT, answers.hot_port(ring(4)), "1.5 S"),
        (questions.AFTER_REDUCE, left_on_rank_2("reduce"), "something that means nothing"),
        (questions.AFTER_REDUCE, left_on_rank_2("all-reduce"), "1111"),
        (questions.AFTER_REDUCE, left_on_rank_2("gather"), "100, as before"),
        (
            questions.REDUCED_TWICE,
            str(run(ring(4), run(ring(4), np.ones((4, 1), int)))[2, 0]),
            "16",
        ),
        (
            questions.WHO_WAITS,
            answers.who_waits(hang(ring(4)), hang(broadcast(4))),
            "everybody; in the broadcast only rank 0",
        ),
        (
            questions.WHO_WAITS,
            answers.who_waits(hang(ring(4)), hang(ring(4))),
            "everybody, both times",
        ),
        (
            questions.WHO_WAITS,
            answers.who_waits(hang(binomial_reduce(4)), hang(broadcast(4))),
            "its neighbours, ranks 1 and 3; in the broadcast rank 0",
        ),
        (
            questions.TWO_STORIES,
            answers.two_stories(*(way(8) for way in WAYS)),
            "total: server and ring; port: server and everyone to everyone",
        ),
        (questions.FIRST_FINISHED, answers.first_finished(ring(4)), "3 rounds, chunk 1"),
        (
            questions.SAME_ORDER,
            answers.order_of_additions(ring(4)),
            "in a different order for each chunk",
        ),
        (
            questions.SAME_ORDER,
            answers.order_of_additions(naive(4)),
            "in a different order on each rank",
        ),
        (
            questions.TURNED_ROUND,
            answers.compared(turned_round, ring, X),
            "the same bits for the same bytes",
        ),
        (questions.TURNED_ROUND, answers.compared(always_adding, ring, X), "wrong sums"),
        (questions.TURNED_ROUND, answers.compared(gloo_ring, ring, X), "right sums, other bits"),
        (
            questions.BEFORE_STEP,
            answers.equal_before_step([1, 2], ["a", "a"]),
            "the gradients only",
        ),
        (
            questions.BEFORE_STEP,
            answers.equal_before_step([1, 1], ["a", "a"]),
            "the losses and the gradients",
        ),
        (
            questions.BEFORE_STEP,
            answers.equal_before_step([1, 2], ["a", "b"]),
            "nothing: `step()` will make them equal",
        ),
        (
            questions.LIBRARYS_BITS,
            answers.bits_compared(X[[0, 0]], X[[1, 1]]),
            "tens of thousands, all ranks alike",
        ),
        (
            questions.LIBRARYS_BITS,
            answers.bits_compared(X[[0, 0]], X[[0, 0]]),
            "none: a sum is a sum",
        ),
        (
            questions.LIBRARYS_BITS,
            answers.bits_compared(np.ones((2, 50)), 1 + np.eye(50)[[0, 0]]),
            "a few, where the rounding was close",
        ),
        (
            questions.DOUBLE_DIVISION,
            answers.divided_twice(0.25, {"SGD": (1.0, 2.0), "AdamW": (1.0, 1.001)}),
            "a quarter; SGD's curve shows it, AdamW's does not",
        ),
        (
            questions.DOUBLE_DIVISION,
            answers.divided_twice(0.25, {"SGD": (1.0, 2.0), "AdamW": (1.0, 2.0)}),
            "a quarter; both curves show it",
        ),
        (
            questions.DOUBLE_DIVISION,
            answers.divided_twice(1.0, {}),
            "the right one: DDP sums, so divide",
        ),
        (
            questions.DOUBLE_DIVISION,
            answers.divided_twice(4.0, {}),
            "four times too much; both curves blow up",
        ),
        (questions.SLOW_LINK, answers.slower(2.98), "about 3 times as long"),
        (questions.SLOW_LINK, answers.slower(1.4), "about 1.5 times as long"),
        (
            questions.SLOW_LINK,
            answers.slower(1.0),
            "as long as before; only its two ranks are late",
        ),
        (questions.LATE_RANK, answers.later_by([0.05] * 4), "all, by 50 ms"),
        (questions.LATE_RANK, answers.later_by([0.0125] * 4), "all, by 12.5 ms"),
        (questions.LATE_RANK, answers.later_by([0, 0, 0.05, 0]), "only rank 2, by 50 ms"),
        (
            questions.MORE_RANKS,
            answers.more_ranks(ring(8), ring(16)),
            "7 % more bytes, 14 rounds become 30",
        ),
        (
            questions.MORE_RANKS,
            answers.more_ranks(naive(5), naive(9)),
            "twice the bytes, twice the rounds",
        ),
        (questions.FLAG, answers.as_long(21.0), "21 times as long"),
        (questions.FLAG, answers.as_long(1.0), "as long: the ring is the best there is"),
        (questions.FLAG, answers.as_long(0.5), "shorter: each of its messages is smaller"),
        (questions.HEALTHY, answers.share_of_link(2**30, 7996e-6, 8, 300e9), "78 %"),
        (questions.HEALTHY, answers.share_of_link(2**30, 7996e-6, 8, 600e9), "39 %"),
        (questions.ACCUMULATION, answers.all_reduces(12, 3), "12, and 3"),
        (questions.ACCUMULATION, answers.all_reduces(3, 3), "3, and 3"),
        (
            questions.LIBRARYS_BITS,
            answers.bits_compared(X, X),
            "tens of thousands, and the ranks differ too",
        ),
        (
            questions.ACCURACY_ALONE,
            answers.about(ALONE.accuracy.mean(), questions.ACCURACY_ALONE),
            "about 0.25",
        ),
        (
            questions.ACCURACY_ALONE,
            answers.about(train().accuracy[0], questions.ACCURACY_ALONE),
            "about 0.9",
        ),
        (
            questions.AVERAGED_ONCE,
            answers.about(ONCE.accuracy[0], questions.AVERAGED_ONCE),
            "about 0.3",
        ),
        (
            questions.DIFFERENT_START,
            answers.later(train(same_start=False).apart),
            "as far as at the start",
        ),
        (questions.DIFFERENT_START, answers.later(ALONE.apart[1:]), "further"),
        (questions.DIFFERENT_START, answers.later([2, 1, 0]), "closer, or at the same point"),
        (
            questions.MISSED_ONCE,
            answers.after_a_miss(train(missed=50, shards="shuffled").apart, 50),
            "it stays, for ever",
        ),
        (
            questions.MISSED_ONCE,
            answers.after_a_miss(train(missed=50, optimizer="momentum").apart, 50),
            "it grows from step to step",
        ),
        (questions.MISSED_ONCE, answers.after_a_miss([0, 2, 1], 1), "it heals within some steps"),
    ],
)
def test_an_answer_is_computed_and_is_a_choice(question, answer, want):
    assert answer == want
    assert answer in question[1]


def test_seven_billion_parameters_take_what_the_engine_reckons():
    asked = answers.seven_billion(ring(8))
    assert asked["answer"] == pytest.approx(39.2)
    assert answers.seven_billion(ring(2))["answer"] == pytest.approx(22.4)
    assert answers.seven_billion(ring(64))["answer"] == pytest.approx(44.1)
    assert "8 ranks" in asked["question"]
    assert Predict.number(**asked).verdict("39.2")["right"]


def test_two_stories_are_told_by_what_is_counted():
    other = answers.two_stories(ring(8), recursive_doubling(8), naive(8))
    assert other == "total: none; port: none"


def test_one_surplus_round_costs_bytes_only():
    def with_one_more(n):
        last = list(ring(n))[-1]
        return Schedule("more", n, n, lambda: [*ring(n), last])

    assert answers.compared(with_one_more, ring, X) == "right sums, more bytes"


def test_one_round_can_finish_everything_and_one_chunk_start_everywhere():
    assert answers.first_finished(recursive_doubling(4)) == "2 rounds, all of them"
    assert answers.order_of_additions(parameter_server(4)) == "rank 0 first, for every chunk"
    last = Schedule("last", 3, 1, lambda: [Round.of(2, 0, 0, True)])
    assert answers.in_charge(last) == "the last rank"


@pytest.mark.parametrize("n", range(1, 9))
def test_the_rings_to_look_at_are_what_they_say(n):
    assert explain(turned_round(n)) == []
    assert (explain(always_adding(n)) == []) == (n == 1)
    assert len(list(always_adding(n))) == 2 * len(list(ring_reduce_scatter(n)))


@pytest.mark.parametrize(
    ("question", "answer", "begins"),
    [
        (questions.ONES_IN_BF16, answers.ones_added(256.0, 1000.0), "256 on the ring"),
        (questions.ONES_IN_BF16, answers.ones_added(1000.0, 1000.0), "1000 both ways"),
        (questions.ONES_IN_BF16, answers.ones_added(np.inf, np.inf), "infinite"),
        (questions.HALF_LOST, answers.about(0.502, questions.HALF_LOST), "about 0.5"),
        (questions.FP32_ACCUMULATOR, answers.accumulator(X, X, X), "the same"),
        (questions.FP32_ACCUMULATOR, answers.accumulator(X + 9, X + 1, X), "several times"),
        (questions.FP32_ACCUMULATOR, answers.accumulator(X + 4, X + 2, X), "about half"),
        (questions.EQUAL_ELEMENTS, answers.equal_elements([[256, 260]] * 2), "256 in some"),
        (questions.EQUAL_ELEMENTS, answers.equal_elements([[260, 260]] * 2), "260 in every"),
        (questions.EQUAL_ELEMENTS, answers.equal_elements([[256], [260]]), "256 on some ranks"),
        (questions.CUT_IN_TWO, answers.changed(0.32), "about a third"),
        (questions.CUT_IN_TWO, answers.changed(0.0), "none"),
        (questions.CUT_IN_TWO, answers.changed(0.95), "nearly all"),
    ],
)
def test_what_rounding_does_is_a_choice(question, answer, begins):
    assert answer.startswith(begins)
    assert answer in question[1]
