"""Prints every closed form beside what is counted in its schedule.

``python -m allreduce_edu.engine.table --ranks 8`` writes a Markdown table.
"""

from __future__ import annotations

import argparse

from allreduce_edu.engine import cost
from allreduce_edu.engine.formulas import ROWS, Formula, closed_form
from allreduce_edu.engine.links import Links


def counted(name: str, n: int, size: int, links: Links, **options: int) -> Formula:
    """Return the same figures counted in the schedule and reckoned round by round."""
    row = ROWS[name]
    schedule, sizes = row.schedule(n, **options), row.sizes(n, size)
    sent = cost.sent_bytes(schedule, sizes)
    time = cost.time(schedule, sizes, links)
    return Formula(
        cost.rounds(schedule),
        cost.messages(schedule, sizes),
        int(sent.max()),
        cost.busiest_port(schedule, sizes),
        int(sent.sum()),
        time,
        time,
    )


def main(argv: list[str] | None = None) -> None:
    """Print every row, counted and in closed form."""
    parser = argparse.ArgumentParser(
        prog="python -m allreduce_edu.engine.table", description=main.__doc__
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--link", default="100 GbE", help="a name in links.LINKS")
    parser.add_argument(
        "--elements", type=int, default=1 << 20, help="fp32; a rank's array has N times as many"
    )
    args = parser.parse_args(argv)
    print(table(args.ranks, args.elements, args.link))


def table(n: int, elements: int, link: str) -> str:
    """Return the rows as a Markdown table: counted / closed form, "=" where they agree."""
    size = 4 * elements * n
    lines = [
        f"{n} ranks, S = {size:,} bytes per rank, {link}, gamma 0; counted in the schedule",
        "(= closed form, or ≤ and ≥ its bounds)",
        "",
        "| row | rounds | sent by one rank / S | busiest port / S | total / S | messages | time |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in ROWS.items():
        options = {"servers": 2} if name == "dedicated_servers" else {}
        extra = {"dedicated_server": 1, "dedicated_servers": 2}.get(name, 0)
        links = Links.uniform(n + extra, link)
        have = counted(name, n, size, links, **options)
        want = closed_form(name, n, size, links, **options)
        marks = [_mark(h, w) for h, w in zip(have[:5], want[:5], strict=True)]
        time = _mark(have.time, want.time) if want.time == want.least else _bounds(have, want)
        in_s = [f"{part / size:.4g}" for part in (have.sent, have.port, have.total)]
        cells = [
            row.label,
            f"{have.rounds} {marks[0]}",
            *(f"{text} {mark}" for text, mark in zip(in_s, marks[2:], strict=True)),
            f"{have.messages} {marks[1]}",
            f"{have.time * 1e3:.4g} ms {time}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mark(have: float, want: float) -> str:
    return "=" if abs(have - want) <= 1e-12 * max(abs(want), 1e-300) else f"≠ {want:.6g}"


def _bounds(have: Formula, want: Formula) -> str:
    inside = want.least * (1 - 1e-12) <= have.time <= want.time * (1 + 1e-12)
    return f"in {want.least * 1e3:.4g} to {want.time * 1e3:.4g}" if inside else "outside its bounds"


if __name__ == "__main__":
    main()
