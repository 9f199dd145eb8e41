import numpy as np

from allreduce_edu import Schedule, ring, ring_reduce_scatter
from allreduce_edu.lessons.readers import share_counts


def test_one_to_n_climbs_along_each_diagonal():
    counts = share_counts(ring_reduce_scatter(4)).counts
    for frame in range(4):
        for r in range(4):
            assert counts[frame, r, (r - frame) % 4] == frame + 1


def test_the_board_prints_a_row_per_rank_and_a_column_per_round():
    lines = repr(share_counts(ring(3))).splitlines()
    assert lines[0].split() == ["start", "round", "1", "round", "2", "round", "3", "round", "4"]
    assert lines[1].split()[:8] == ["rank", "0", "1", "1", "1", "1", "1", "2"]
    assert lines[3].endswith("3 3 3")


def test_a_schedule_without_rounds_is_all_start():
    board = share_counts(Schedule("nothing", 2, 1, list))
    assert np.array_equal(board.counts, [[[1], [1]]])
