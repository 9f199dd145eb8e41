"""The questions that come before the evidence: each choice with the reply it deserves.

Kept out of the notebooks, where the reply would stand above the question. The answer is never
here: the notebook computes it and passes it on, ``Predict(*questions.WHO_IS_IN_CHARGE, answer)``.
"""

from __future__ import annotations

Question = tuple[str, dict[str, str]]

AFTER_ALL_REDUCE: Question = (
    "Four ranks hold 1, 10, 100 and 1000. They all-reduce with sum. What does rank 2 hold now?",
    {
        "100": "100 is what rank 2 had. An all-reduce works in place: the sum takes its place.",
        "277.75": "277.75 is the mean. All-reduce adds; who wants the mean divides. (DDP does.)",
        "1111": "Each share is in it once: 1 + 10 + 100 + 1000. So it is on every other rank.",
        "nothing: rank 0 has the sum": "That is `reduce`. The `all` in all-reduce means that "
        "every rank gets the result.",
    },
)
WHO_IS_IN_CHARGE: Question = (
    "You stepped through a ring. Which rank is in charge of the sum?",
    {
        "rank 0": "Rank 0 sends and adds as much as every other rank, no more. A rank in charge "
        "would be a server, and its link would be the first to fill.",
        "the last rank": "Count its bytes: as many as everybody's. It only closes the ring.",
        "none": "All send the same bytes in every round, and each finishes one piece of the sum.",
    },
)

ACCURACY_ALONE: Question = (
    (
        "Four replicas start equal. Each sees only some of the ten digits, and they tell each "
        "other nothing. After 300 steps: which share of all ten digits does a replica read right?"
    ),
    {
        "about 0.1": "That is guessing. Each replica is trained, and learns its own digits well.",
        "about 0.25": "Its own two or three digits nearly always, the others never: nobody has "
        "told it that they exist. What travels in an all-reduce is what the others have seen.",
        "about 0.9": "So it would be if data parallelism were about speed only. But a replica "
        "cannot read what it never saw and nobody told it about.",
    },
)
AVERAGED_ONCE: Question = (
    (
        "The same four, each alone for 300 steps. Then their weights are averaged, once, at the "
        "end. Which share of all ten digits does the average read right?"
    ),
    {
        "about 0.3": "The mean of four specialists is not somebody who knows all four trades: "
        "each moved its weights without regard to the others.",
        "about 0.6": "Halfway would need the four to agree on most weights. Theirs went "
        "four different ways, and their mean is nobody's.",
        "about 0.9": "Averaging is not just averaging: gradients in each step are averaged where "
        "all stand at the same point. (If each had seen all ten digits, you would be right.)",
    },
)
DIFFERENT_START: Question = (
    (
        "Four replicas start from different weights. Their gradients are averaged in every step "
        "(SGD). How far apart are their weights after 300 steps?"
    ),
    {
        "closer, or at the same point": "An average of gradients does not pull. All replicas "
        "make the same move from wherever they stand, so the gaps between them stay.",
        "as far as at the start": "Equal moves from different places keep the places apart. "
        "Averaging gradients makes updates equal; it never looks at the weights.",
        "further": "To drift they would have to move differently. Their updates are equal, bit "
        "for bit, so no gap can grow.",
    },
)
MISSED_ONCE: Question = (
    (
        "Four replicas start equal and average their gradients in every step (SGD). In step 50, "
        "once, one rank uses its own gradient instead. What becomes of the gap?"
    ),
    {
        "it heals within some steps": "Nothing heals it: from then on all make equal moves, and "
        "equal moves keep a gap as it is.",
        "it stays, for ever": "One different move, then equal moves: with SGD the gap stays as "
        "it is, and no curve of loss or accuracy shows it.",
        "it grows from step to step": "With SGD each later move is the same on all ranks. An "
        "optimizer that remembers, however, goes on using what it saw in step 50.",
    },
)

HOT_PORT: Question = (
    (
        "A server: three ranks send their whole array (S bytes) to rank 0, which adds and sends "
        "the sum back. How many bytes does the busiest port send?"
    ),
    {
        "S": "S is what each of the others sends. Rank 0 answers all three of them.",
        "1.5 S": "1.5 S is the average over the four ranks. A port is not relieved by idle others.",
        "3 S": "Rank 0 sends the sum three times, and has received three arrays before.",
        "6 S": "6 S is what crosses the network in total. Half of it enters rank 0, half leaves.",
    },
)
FIRST_FINISHED: Question = (
    (
        "The first phase of a ring of four: in every round each rank sends one chunk to its right "
        "neighbour, which adds it. Rank r sends chunk r first. After how many rounds is a chunk "
        "finished anywhere, and which one does rank 0 then hold?"
    ),
    {
        "3 rounds, chunk 0": (
            "The number is right. But a chunk does not come home: chunk 0 leaves rank 0 in the "
            "first round, and is finished one place before it would be back."
        ),
        "3 rounds, chunk 1": (
            "Each round adds one share to it, and three were missing. It ends one place before it "
            "would come home: on rank 0 that is chunk 1."
        ),
        "3 rounds, all of them": (
            "After this phase each rank holds one finished chunk, each a different one. That is a "
            "reduce-scatter; the rest must still be copied."
        ),
        "6 rounds, chunk 0": (
            "Six is the whole all-reduce, copies included. The first chunk is finished as soon as "
            "its three missing shares have been added."
        ),
    },
)
TURNED_ROUND: Question = (
    (
        "In the second phase, finished chunks are copied. Now they travel to the left, from "
        "rank r to rank r-1, with the order of the chunks mirrored. What comes out?"
    ),
    {
        "the same bits for the same bytes": "A finished chunk is only copied. Any route that "
        "brings each one to everybody once is as good as any other.",
        "wrong sums": "Nothing is added in this phase. The direction belongs to the picture, not "
        "to the reason: what matters is that each finished chunk reaches everybody.",
        "right sums, more bytes": "Count the copies: each rank must still receive three chunks, "
        "whichever way they come.",
        "right sums, other bits": "The bits were settled in the first phase, when the additions "
        "were done. A copy has the bits of the original.",
    },
)
SAME_ORDER: Question = (
    "In which order are the four shares of a number added?",
    {
        "rank 0 first, for every chunk": "Then rank 0 would start every chunk. On a ring each "
        "chunk starts on another rank.",
        "in a different order for each chunk": "Each chunk starts on its own rank and goes round "
        "from there: the orders are rotations of each other.",
        "in a different order on each rank": "Each chunk is added up once, on its way "
        "round, and then copied, so no rank has an order of its own. That is why all hold the same "
        "bits.",
    },
)

BEFORE_STEP: Question = (
    (
        "Four processes with equal weights have seen different images. `backward()` and the lines "
        "of `average_gradients` have run; `step()` has not. Besides the weights, what is equal on "
        "the four ranks?"
    ),
    {
        "the losses and the gradients": (
            "Nobody averaged the losses: each rank has seen its own images. Only what was sent "
            "through the all-reduce is equal."
        ),
        "the gradients only": (
            "The gradients went through the all-reduce, the losses did not. And `step()` was not "
            "needed for it."
        ),
        "nothing: `step()` will make them equal": (
            "`step()` sends nothing. It reads `.grad` and changes the weights of its own process, "
            "so whatever is to be equal must be equal before."
        ),
    },
)
LIBRARYS_BITS: Question = (
    (
        "100,000 random numbers on each of four ranks. The ring of the player, and "
        "`dist.all_reduce` on real processes: how many of the sums differ in their bits?"
    ),
    {
        "none: a sum is a sum": "Rounded sums depend on the order of their additions, and the two "
        "rings begin each chunk on different ranks.",
        "a few, where the rounding was close": "Four numbers have several orders, and most of them "
        "round somewhere on the way. Last bits differ nearly as often as not.",
        "tens of thousands, and the ranks differ too": "The order belongs to the chunk, not to the "
        "rank: each chunk is finished in one place and copied.",
        "tens of thousands, all ranks alike": "Two rings, two orders, other last bits in many "
        "places. Within each ring every rank holds a copy of the same bits.",
    },
)
DOUBLE_DIVISION: Question = (
    (
        "Four ranks under DDP, and someone divides the loss by the number of ranks, as some "
        "articles advise. What does `.grad` hold, compared with the right one, and who sees it "
        "in the loss curve?"
    ),
    {
        "the right one: DDP sums, so divide": "A sum does cross the wire, but of gradients that "
        "DDP has divided already. Divide the loss as well, and it is done twice.",
        "a quarter; SGD's curve shows it, AdamW's does not": "SGD's step is as long as the "
        "gradient. AdamW divides the gradient by its own size, so a factor cancels.",
        "a quarter; both curves show it": "The factor is right. But AdamW divides each gradient "
        "by its own running size: four times too small is the same step.",
        "four times too much; both curves blow up": "That would be a sum that nobody divided. "
        "Here two divide: DDP, and the line with the loss.",
    },
)
ACCUMULATION: Question = (
    (
        "Under DDP, one bucket: three steps, and in each the gradients of four micro-batches are "
        "added up before `step()`. How many all-reduces? And how many with `no_sync` round the "
        "first three of each four?"
    ),
    {
        "3, and 3": "DDP knows nothing of `step()`. Each `backward()` ends with gradients that are "
        "equal on all ranks, wanted or not.",
        "12, and 12": "`no_sync` is what tells DDP that a gradient is not finished: inside it the "
        "ranks only add up their own.",
        "12, and 3": "Each `backward()` communicates, unless its forward ran inside `no_sync`. "
        "The last one sends what has been added up.",
        "12, and 0": "The last micro-batch of each step is outside, and its `backward()` sends "
        "the whole of what was added up.",
    },
)
