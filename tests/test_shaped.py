"""The time model of the lessons holds on real ranks, between which every link's speed is known.

Nothing in the predictions is fitted: the bandwidth is the configured one less the headers, alpha
is half of a small message's way there and back. What needs network namespaces is run by
``-m network`` and by .ci/run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real ranks need torch")

import torch.distributed as dist  # noqa: E402
from leftovers import marked, until  # noqa: E402

from allreduce_edu.engine.algorithms import naive, parameter_server, ring  # noqa: E402
from allreduce_edu.engine.cost import time  # noqa: E402
from allreduce_edu.realdist import forked  # noqa: E402
from allreduce_edu.realdist.pool import Pool, RankError  # noqa: E402
from allreduce_edu.realdist.shaped import ShapedLinks  # noqa: E402

MBITS, SIZE = 100.0, 4 << 20
GATE = (0.9, 1.1)  # measured / predicted
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def lab():
    """Nothing, but a skip with its reason where such networks cannot be built."""
    if reason := ShapedLinks.obstacle():
        pytest.skip(reason)


@pytest.fixture(params=[2, 3, 4])
def pool(request, lab):
    with Pool(request.param, network=ShapedLinks(MBITS), timeout=120) as pool:
        yield pool


def half_a_ping_pong():
    import time

    x, seconds = torch.zeros(1), []
    for _ in range(50):
        dist.barrier()
        start = time.perf_counter()
        for sender in (0, 1):
            if dist.get_rank() == sender:
                dist.send(x, 1 - sender)
            elif dist.get_rank() == 1 - sender:
                dist.recv(x, sender)
        seconds.append(time.perf_counter() - start)
    return min(seconds) / 2


def seconds(pool, what):
    """Return the fastest call: a busy machine makes some too long, none too short."""
    return pool.sweep(what, [SIZE], repeats=2).points[0].fastest


def ratio(measured, predicted):
    """Return measured / predicted, rounded as the gate is."""
    return round(float(measured / predicted), 3)


@pytest.mark.network
def test_the_model_predicts_ring_server_and_naive(pool):
    n, alpha = pool.ranks, pool.run(half_a_ping_pong)[0]
    links = ShapedLinks(MBITS).links(n, alpha)
    measured = {"gloo": seconds(pool, "all_reduce")}
    predicted = {"gloo": time(ring(n), SIZE, links)}
    for make in (ring, naive, parameter_server):
        measured[make.__name__] = seconds(pool, make(n))
        predicted[make.__name__] = time(make(n), SIZE, links)
    found = {name: ratio(measured[name], predicted[name]) for name in measured}
    served = ratio(measured["parameter_server"], n * measured["ring"])
    print(f"n = {n}, alpha = {alpha * 1e6:.0f} us; measured / predicted: {found}; {served}")
    for name, each in found.items():
        above = 0.1 * (name == "naive")  # all send to all at once: queues meet in the switch
        assert GATE[0] <= each <= GATE[1] + above, f"{name}: {found}"
    assert 0.95 <= served <= 1.05, "parameter server over ring is n"


@pytest.mark.network
def test_one_link_at_half_speed_halves_the_ring(lab):
    slow = ShapedLinks(MBITS, slow={1: MBITS / 2})
    with Pool(3, network=ShapedLinks(MBITS)) as even, Pool(3, network=slow) as uneven:
        assert 1.9 < seconds(uneven, ring(3)) / seconds(even, ring(3)) < 2.1


def exchange(receive_first):
    """Swap `SIZE` bytes between two ranks, posted in the given order; return the seconds."""
    import time

    here, there = torch.ones(SIZE // 4), torch.empty(SIZE // 4)
    other, seconds = 1 - dist.get_rank(), []
    for _ in range(7):
        dist.barrier()
        start = time.perf_counter()
        posts = [lambda: dist.irecv(there, other), lambda: dist.isend(here, other)]
        for post in [post() for post in posts[:: 1 if receive_first else -1]]:
            post.wait()
        seconds.append(time.perf_counter() - start)
    return seconds


@pytest.mark.network
def test_play_posts_receives_before_sends_and_that_matters(lab):
    """In the other order gloo's notices wait behind the data, in most calls: half duplex."""
    with Pool(2, network=ShapedLinks(MBITS)) as pool:
        once = time(ring(2), SIZE, ShapedLinks(MBITS).links(2, 0.0))
        slowest = [max(map(max, pool.run(exchange, order))) / once for order in (True, False)]
        played = pool.sweep(ring(2), [SIZE]).points[0].slowest / once
        print(f"receive first: {slowest[0]:.3f}, send first: {slowest[1]:.3f}, play: {played:.3f}")
        assert max(slowest[0], played) < 1.4
        assert 1.8 < slowest[1] < 2.2


def on_the_wire():
    rows = Path("/proc/net/dev").read_text().splitlines()[2:]
    fields = {name.strip(): rest.split() for name, rest in (row.split(":") for row in rows)}
    return int(fields["eth0"][0]), int(fields["eth0"][8])


@pytest.mark.network
@pytest.mark.parametrize("what", ["all_reduce", "ring"])
def test_the_system_counts_the_bytes_of_the_formula(lab, what):
    """2 (n - 1) / n S per rank, each way; large packets are cut late, so headers hardly count."""
    n, repeats = 3, 5
    with Pool(n, network=ShapedLinks(10_000)) as pool:
        schedule = ring(n) if what == "ring" else what
        pool.sweep(schedule, [4], repeats=1)
        before = np.array(pool.run(on_the_wire))
        pool.sweep(schedule, [SIZE], repeats=repeats)
        counted = np.array(pool.run(on_the_wire)) - before
    formula = (2 + repeats) * 2 * (n - 1) / n * SIZE  # two calls to warm up
    assert counted / formula == pytest.approx(np.ones((n, 2)), abs=0.01)


@pytest.mark.network
def test_a_user_without_rights_gets_it_too_and_nothing_is_left(lab):
    """In a user namespace in which this process is nobody special."""
    code = """
    import os
    from pathlib import Path
    from allreduce_edu import Pool, ShapedLinks

    assert os.geteuid() == 1000 and not int(
        next(line for line in open("/proc/self/status") if "CapEff" in line).split()[1], 16)
    before = Path("/proc/net/dev").read_text().count(":")
    with Pool(2, network=ShapedLinks(1000)) as pool:
        print(pool.run(lambda: [name for _, name in __import__("socket").if_nameindex()]))
    assert Path("/proc/net/dev").read_text().count(":") == before
    """
    nobody = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    try:
        subprocess.run([*nobody, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("user namespaces are refused here")
    ran = subprocess.run(
        [*nobody, sys.executable, "-c", textwrap.dedent(code)],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert ran.stdout == "[['lo', 'eth0'], ['lo', 'eth0']]\n", ran.stderr


@pytest.mark.network
def test_a_killed_kernel_takes_the_network_with_it(lab):
    code = """
    import time
    from allreduce_edu import Pool, ShapedLinks
    pool = Pool(2, network=ShapedLinks(100))
    pool.run(len, ())
    print("up", flush=True)
    pool.run(time.sleep, 1000)
    """
    mark = str(uuid.uuid4())
    env = os.environ | {"NETWORK_TEST": mark, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    before = Path("/proc/net/dev").read_text().count(":")
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout.readline() == "up\n"
        kernel.kill()
    until(lambda: not marked(mark), "processes, which hold the network, are left")
    assert Path("/proc/net/dev").read_text().count(":") == before


@pytest.mark.network
def test_the_ranks_reach_each_other_and_nothing_else(lab):
    def reach():
        import socket

        found = []
        for address in ("10.77.0.1", "10.77.0.2", "192.0.2.1"):
            try:
                socket.create_connection((address, 9), timeout=5)
            except OSError as error:
                found.append(error.strerror)
        return found

    with Pool(2, network=ShapedLinks(1000)) as pool:
        refused, nowhere = "Connection refused", "Network is unreachable"
        assert pool.run(reach) == [[refused, refused, nowhere]] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has what it takes")
def test_where_it_is_refused_one_sentence_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(forked._Zygote, "_current", None)  # there may be one, which knows no PATH
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "ip").write_text("#!/bin/sh\necho 'Operation not permitted' >&2\nexit 1\n")
    (tmp_path / "ip").chmod(0o755)
    reason = ShapedLinks.obstacle()
    assert reason.startswith(
        ("ip cannot build the network here: Operation not permitted", "the sy")
    )
    assert len(reason.splitlines()) == 1
    pool = Pool(2, network=ShapedLinks(100))
    with pytest.raises(RankError) as caught:
        pool.run(len, ())
    assert str(caught.value) == f"the ranks could not be started: {reason}"


def test_it_reads_as_a_sentence_and_knows_its_speeds():
    links = ShapedLinks(100, slow={2: 50})
    assert repr(links) == "ShapedLinks(100 Mbit/s; rank 2: 50 Mbit/s)"
    assert links.speeds(3) == [100, 100, 50]
    link = links.links(3, 7e-5).inside
    assert (link.alpha, 1 / link.beta) == (
        7e-5,
        pytest.approx([11.955e6, 11.955e6, 5.9775e6], rel=1e-4),
    )


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ShapedLinks(0), "mbits must be a number of Mbit/s from 1 to 10000, got 0"),
        (
            lambda: ShapedLinks("9"),
            "mbits must be a number of Mbit/s from 1 to 10000, got '9' (str)",
        ),
        (lambda: ShapedLinks(9, {1: 0}), "the speed of rank 1 in slow must be a number of Mbit/s"),
        (lambda: ShapedLinks(9, {-1: 1}), "a rank in slow must be an integer >= 0, got -1"),
        (lambda: Pool(2, network=ShapedLinks(9, {2: 1})), "slow names rank 2, and there are 2"),
        (lambda: Pool(2, network=100), "network must be ShapedLinks, got 100 (int)"),
        (lambda: Pool(1, "nccl", network=ShapedLinks(9)), "network is for gloo on Linux alone"),
    ],
)
def test_bad_input_is_one_sentence(make, told):
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(told)}"):
        make()
