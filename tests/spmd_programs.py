"""Programs as learners write them: right ones, and ones that are wrong in the usual ways."""

from __future__ import annotations

import numpy as np


def right_of(comm):
    return (comm.rank + 1) % comm.size


def left_of(comm):
    return (comm.rank - 1) % comm.size


def pass_on(comm, piece, **keys):
    """Send a piece to the right and get one from the left."""
    return comm.sendrecv(piece, right_of(comm), left_of(comm), **keys)


def ring(comm, x):
    n, r = comm.size, comm.rank
    parts = np.array_split(x, n)
    for k in range(n - 1):
        parts[(r - k - 1) % n] += pass_on(comm, parts[(r - k) % n])
    for k in range(n - 1):
        parts[(r - k) % n][:] = pass_on(comm, parts[(r + 1 - k) % n])
    return x


def ring_in_a_list(comm, x):
    """Pieces are copies in a list, glued together at the end."""
    n, r = comm.size, comm.rank
    parts = [part.copy() for part in np.array_split(x, n)]
    for k in range(n - 1):
        parts[(r - k - 1) % n] = parts[(r - k - 1) % n] + pass_on(comm, parts[(r - k) % n])
    for k in range(n - 1):
        parts[(r - k) % n] = pass_on(comm, parts[(r + 1 - k) % n])
    return np.concatenate(parts)


def ring_with_requests(comm, x):
    n, r = comm.size, comm.rank
    parts = np.array_split(x, n)
    for k in range(n - 1):
        into = parts[(r - k - 1) % n]
        came = np.empty_like(into)
        leaving = comm.isend(parts[(r - k) % n], right_of(comm))
        arriving = comm.irecv(left_of(comm), came)
        arriving.wait()
        leaving.wait()
        into += came
    for k in range(n - 1):
        leaving = comm.isend(parts[(r + 1 - k) % n], right_of(comm))
        comm.recv(left_of(comm), out=parts[(r - k) % n])
        leaving.wait()


def ring_with_strides(comm, x):
    """A piece is every n-th element."""
    n, r = comm.size, comm.rank
    for k in range(n - 1):
        x[(r - k - 1) % n :: n] += pass_on(comm, x[(r - k) % n :: n])
    for k in range(n - 1):
        x[(r - k) % n :: n] = pass_on(comm, x[(r + 1 - k) % n :: n])


def ring_by_turns(comm, x):
    """Even ranks send first: right without sendrecv, and twice as long."""
    n, r = comm.size, comm.rank
    parts = np.array_split(x, n)

    def step(piece):
        if r % 2:
            came = comm.recv(left_of(comm))
            comm.send(piece, right_of(comm))
        else:
            comm.send(piece, right_of(comm))
            came = comm.recv(left_of(comm))
        return came

    for k in range(n - 1):
        parts[(r - k - 1) % n] += step(parts[(r - k) % n])
    for k in range(n - 1):
        parts[(r - k) % n][:] = step(parts[(r + 1 - k) % n])


def server(comm, x):
    if comm.rank == 0:
        for src in range(1, comm.size):
            x += comm.recv(src)
        for dst in range(1, comm.size):
            comm.send(x, dst)
    else:
        comm.send(x, 0)
        x[:] = comm.recv(0)


def server_with_a_list(comm, x):
    if comm.rank:
        comm.send(x, 0)
        return comm.recv(0)
    total = sum([comm.recv(src) for src in range(1, comm.size)], x)
    for dst in range(1, comm.size):
        comm.send(total, dst)
    return total


def tree(comm, x):
    r, away = comm.rank, 1
    while away < comm.size:
        if r % (2 * away) == away:
            comm.send(x, r - away)
        elif r % (2 * away) == 0 and r + away < comm.size:
            x += comm.recv(r + away)
        away *= 2
    while away > 1:
        away //= 2
        if r % (2 * away) == 0 and r + away < comm.size:
            comm.send(x, r + away)
        elif r % (2 * away) == away:
            comm.recv(r - away, out=x)


def doubling(comm, x):
    """For powers of two; whole arrays."""
    away = 1
    while away < comm.size:
        x = x + comm.sendrecv(x, comm.rank ^ away, comm.rank ^ away)
        away *= 2
    return x


def halving(comm, x):
    """For powers of two: halve what is exchanged, then double it again."""
    low, high, away, halves = 0, len(x), comm.size // 2, []
    while away:
        middle, other = (low + high) // 2, comm.rank ^ away
        halves.append((low, high, away))
        if comm.rank & away:
            x[middle:high] += comm.sendrecv(x[low:middle], other, other)
            low = middle
        else:
            x[low:middle] += comm.sendrecv(x[middle:high], other, other)
            high = middle
        away //= 2
    for start, stop, away in reversed(halves):
        came = comm.sendrecv(x[low:high], comm.rank ^ away, comm.rank ^ away)
        if low == start:
            x[high:stop] = came
        else:
            x[start:low] = came
        low, high = start, stop


def direct(comm, x):
    """Each rank sums one piece of everybody's, and sends the sum to everybody."""
    n, r = comm.size, comm.rank
    parts = np.array_split(x, n)
    others = [other for other in range(n) if other != r]
    leaving = [comm.isend(parts[dst].copy(), dst) for dst in others]
    for src in others:
        parts[r] += comm.recv(src)
    for each in leaving:
        each.wait()
    leaving = [comm.isend(parts[r].copy(), dst, tag=1) for dst in others]
    for src in others:
        parts[src][:] = comm.recv(src, tag=1)
    for each in leaving:
        each.wait()


def library(comm, x):
    comm.all_reduce(x)


LINEAR = (
    ring,
    ring_in_a_list,
    ring_with_requests,
    ring_with_strides,
    ring_by_turns,
    server,
    server_with_a_list,
    tree,
    direct,
)
POWERS_OF_TWO = (doubling, halving)


# ------------------------------------------------------------------------- wrong ones


def rebinds(comm, x):
    """The commonest silent bug: a name in a list gets another array, x keeps its old one."""
    n, r = comm.size, comm.rank
    parts = np.array_split(x, n)
    for k in range(n - 1):
        parts[(r - k - 1) % n] += pass_on(comm, parts[(r - k) % n])
    for k in range(n - 1):
        parts[(r - k) % n] = pass_on(comm, parts[(r + 1 - k) % n])
    return x


def adds_into_what_it_sends(comm, x):
    n, r = comm.size, comm.rank
    parts = np.array_split(x, n)
    for k in range(n - 1):
        parts[(r - k) % n] += pass_on(comm, parts[(r - k) % n])
    for k in range(n - 1):
        parts[(r - k) % n][:] = pass_on(comm, parts[(r + 1 - k) % n])
    return x


def one_round_too_many(comm, x):
    n, r = comm.size, comm.rank
    parts = np.array_split(x, n)
    for k in range(n - 1):
        parts[(r - k - 1) % n] += pass_on(comm, parts[(r - k) % n])
    for k in range(n):
        parts[(r - k) % n][:] = pass_on(comm, parts[(r + 1 - k) % n])
    return x


def one_round_too_few(comm, x):
    n, r = comm.size, comm.rank
    parts = np.array_split(x, n)
    for k in range(n - 1):
        parts[(r - k - 1) % n] += pass_on(comm, parts[(r - k) % n])
    for k in range(n - 2):
        parts[(r - k) % n][:] = pass_on(comm, parts[(r + 1 - k) % n])
    return x


def adds_in_the_gather(comm, x):
    n, r = comm.size, comm.rank
    parts = np.array_split(x, n)
    for k in range(n - 1):
        parts[(r - k - 1) % n] += pass_on(comm, parts[(r - k) % n])
    for k in range(n - 1):
        parts[(r - k) % n] += pass_on(comm, parts[(r + 1 - k) % n])
    return x


def whole_arrays(comm, x):
    """A ring that sends everything in each of its rounds: right, and N/2 times too much."""
    total, moving = x.copy(), x
    for _ in range(comm.size - 1):
        moving = pass_on(comm, moving)
        total += moving
    return total


def forgets_the_rest(comm, x):
    """Right where the ranks divide the size."""
    n, r, m = comm.size, comm.rank, len(x) // comm.size
    parts = [x[i * m : (i + 1) * m] for i in range(n)]
    for k in range(n - 1):
        parts[(r - k - 1) % n] += pass_on(comm, parts[(r - k) % n])
    for k in range(n - 1):
        parts[(r - k) % n][:] = pass_on(comm, parts[(r + 1 - k) % n])
    return x


def in_floats(comm, x):
    """Right for float64 alone: integers come back as floats."""
    return server_with_a_list(comm, x.astype(float))


def shifts(comm, x):
    """Adds everything one place to the right of where it belongs."""
    if comm.rank:
        comm.send(x, 0)
        return comm.recv(0)
    for src in range(1, comm.size):
        x += np.roll(comm.recv(src), 1)
    for dst in range(1, comm.size):
        comm.send(x, dst)
    return x


def sends_first(comm, x):
    n, r = comm.size, comm.rank
    parts = np.array_split(x, n)
    for k in range(n - 1):
        comm.send(parts[(r - k) % n], right_of(comm))
        parts[(r - k - 1) % n] += comm.recv(left_of(comm))
    return x
