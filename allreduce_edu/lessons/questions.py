"""The questions that come before the evidence: each choice with the reply it deserves.

Kept out of the notebooks, where the reply would stand above the question. The answer is never
here: the notebook computes it and passes it on, ``Predict(*questions.WHO_IS_IN_CHARGE, answer)``.
"""

from __future__ import annotations

from typing import Any

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

AFTER_REDUCE: Question = (
    (
        "Four ranks hold 1, 10, 100 and 1000, each of them in four elements. They `reduce` to "
        "rank 0, with sum. What is in rank 2's buffer now?"
    ),
    {
        "100, as before": "That would be so if a rank only read its buffer. But it may write "
        "partial sums into it, and nobody has promised to put back what was there.",
        "1111": "That is all-reduce. After a reduce the sum is on the root, rank 0, and only "
        "there.",
        "0": "Nothing is cleared: that would take time, and nobody is meant to read it.",
        "something that means nothing": "Whatever the algorithm left behind, here a partial sum. "
        "Another library, or another size, leaves something else.",
    },
)
REDUCED_TWICE: Question = (
    (
        "`x` holds ones on four ranks. Every rank calls `all_reduce(x)`, with sum, and then "
        "`all_reduce(x)` once more. What does `x` hold?"
    ),
    {
        "1": "It would if the call returned the sum, as in `y = all_reduce(x)`. But it works in "
        "place: what was in `x` is gone.",
        "4": "4 is what the first call leaves. The second does not know that this is a sum "
        "already, and adds up four of them.",
        "8": "The second call does not add another 4: it adds the `x` of all four ranks, and each "
        "of them is 4 by then.",
        "16": "4 after the first call, four times 4 after the second. Who calls it twice gets a "
        "gradient that is too long by the number of ranks.",
    },
)
WHO_WAITS: Question = (
    (
        "Rank 2 of four leaves out one all-reduce over a ring: its call is inside an `if`. Who "
        "waits? And who waits if it leaves out a broadcast from rank 0 instead?"
    ),
    {
        "nobody: the others do it among themselves": "A collective has the members of its group, "
        "and no list of who came. Nobody knows that rank 2 will not.",
        "its neighbours, ranks 1 and 3; in the broadcast rank 0": "Right for the broadcast. But in "
        "the ring rank 0 waits for its neighbours, which wait for rank 2.",
        "everybody, both times": "In the broadcast ranks 1 and 3 have what they need as soon as it "
        "has come. Not every collective is a barrier.",
        "everybody; in the broadcast only rank 0": "In an all-reduce each needs something from "
        "each. In a broadcast the data flow one way: who has received goes on.",
    },
)
TWO_STORIES: Question = (
    (
        "Eight ranks all-reduce S bytes each: over a server (reduce + broadcast), in a ring "
        "(reduce-scatter + all-gather), and everyone to everyone (all-gather + add). Which two "
        "send the same in total? And which two have an equally busy port?"
    ),
    {
        "the ring sends least of all, in total and at its port": "At its port, yes. In total the "
        "server sends no more than the ring: two numbers, two different stories.",
        "total: server and ring; port: server and everyone to everyone": "The server's total is "
        "that of the ring, but half of it passes through one port.",
        "total: server and everyone to everyone; port: none": "Everyone to everyone sends four "
        "times as much. What it shares with the server is the height of the tallest bar.",
        "all three send the same in total": "Everyone to everyone sends each array seven times, "
        "the other two less than twice.",
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
    "In a ring of four ranks, in which order are the four shares of a number added?",
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
SLOW_LINK: Question = (
    (
        "A ring of four ranks, 64 MB on each. One of its four links takes 3 times as long as the "
        "others for every byte. How long does the all-reduce take now?"
    ),
    {
        "as long as before; only its two ranks are late": "Every round uses every link, and each "
        "rank's next round needs what its neighbour sends. The two cannot be late alone.",
        "about 1.5 times as long": "That is the mean over the four links. But nobody shares the "
        "load of the slow one: it carries a chunk in every round.",
        "about 3 times as long": "The slow link carries one chunk in each round, and no round is "
        "over before it. (A little less than 3: the latency has not become longer.)",
    },
)
LATE_RANK: Question = (
    (
        "The same ring, all links alike. Rank 2 begins 50 ms late, because its data came late. "
        "Who is done later, and by how much?"
    ),
    {
        "only rank 2, by 50 ms": "Ranks do not work side by side here but hand in hand: rank 3 "
        "cannot add what rank 2 has not sent.",
        "all, by 12.5 ms": "Nobody can take over a part of what rank 2 has to do, so nothing is "
        "shared out. The others can only wait.",
        "all, by 50 ms": "The wait is passed on to the neighbours, to theirs, and so round the "
        "ring; then all are 50 ms late, once. It is nobody's fault but rank 2's.",
        "all, by 300 ms": "Once late is late once: in the second round rank 2 is as far as its "
        "neighbours, who have waited for it. The delay does not come again in each round.",
    },
)

MORE_RANKS: Question = (
    (
        "A ring of 8 ranks becomes one of 16, with the same array on each rank. What becomes of "
        "the bytes that each rank sends, and of the rounds?"
    ),
    {
        "twice the bytes, twice the rounds": "The bytes of all ranks together have about doubled. "
        "Each rank sends twice as many chunks, but they are half as large.",
        "7 % more bytes, 14 rounds become 30": "2(N-1)/N goes from 1.75 to 1.875, and stays below "
        "2 for ever. The rounds, 2(N-1), have no such bound, and each costs a latency.",
        "the same bytes, the same rounds: so the same time": "Nearly the same bytes, yes. But "
        "a chunk has more ranks to visit, and each visit is a round with a latency of its own.",
    },
)
FLAG: Question = (
    (
        "A flag of 4 bytes, 64 ranks, 10 µs of latency for each round. How long does the ring "
        "take, compared with recursive doubling?"
    ),
    {
        "as long: the ring is the best there is": "The ring is best in bytes, and 4 bytes cost "
        "nothing. Count the rounds that must follow one another.",
        "16 times as long": "The 4 bytes are not cut into 64 pieces to any use. What takes time "
        "is the latency of each round: count these.",
        "21 times as long": "126 rounds against 6, each for a latency. What travels in them "
        "hardly matters.",
        "shorter: each of its messages is smaller": "Smaller than next to nothing is no gain. "
        "Each message pays the latency, whatever it carries.",
    },
)
HEALTHY: Question = (
    (
        "A benchmark reports 7,996 µs for an all-reduce of 1 GiB on 8 GPUs. Each GPU's links can "
        "send 300 GB/s, and receive as much at the same time (the advertisement says 600). Which "
        "share of what the links can do is used?"
    ),
    {
        "39 %": "That compares with 600, both directions together. Bytes sent are counted "
        "once, so compare them with what can be sent: one direction.",
        "45 %": "That is S/t, algbw, and S is not what crosses a port: 2(N-1)/N times as much "
        "must. Otherwise more ranks would make every link look worse.",
        "78 %": "S/t times 2(N-1)/N is what leaves each port, busbw. About four fifths of one "
        "direction is what such links give: healthy.",
        "90 %": "That lets two whole arrays leave each port, as with very many ranks. With 8 it "
        "is 1.75 of them: 2(N-1)/N.",
    },
)


def seven_billion(once: float, ranks: int) -> dict[str, Any]:
    """Return a question for a number, seconds, and what is said to each wrong belief.

    `once` is how long the whole array takes over one port, one way.
    """
    limit, sent = 2 * once, 2 * (ranks - 1) / ranks * once
    return {
        "question": (
            f"A model of 7 billion parameters, gradients in fp32, {ranks} ranks in a ring, one "
            "10 Gb/s link each, no latency. How many seconds does one all-reduce take?"
        ),
        "right": "28 GB of gradients; 2(N-1)/N of that leaves each port; 10 Gb/s are 1.25 GB/s.",
        "replies": {
            once: "So it would be if each rank sent its gradients once. Count the rounds: each "
            "rank sends a chunk in 2(N-1) of them.",
            limit: "That is the limit for very many ranks. With few, a little less must be sent.",
            once / 8: "Bits and bytes: a link of 10 Gb/s carries 1.25 GB/s. And once is not "
            "enough.",
            limit / 8: "Bits and bytes: 8 bits are a byte, and 10 Gb/s are 1.25 GB/s.",
            sent / 8: "The right bytes, but in the wrong unit: 10 Gb/s are 1.25 GB/s.",
            sent * ranks: "That sends the bytes of all ranks through one port. So would a server "
            "on one of the ranks; in a ring every port works.",
            ranks * once: "That is a server that answers everybody in turn. In a ring each port "
            "sends less than two whole arrays.",
            2 * sent: "Sending and receiving happen at the same time, each in its own direction. "
            "Count what is sent.",
        },
        "otherwise": "Go step by step: the bytes of one array; how much of it leaves each port; "
        "what a port carries in a second, in bytes.",
        "unit": "s",
        "tolerance": 0.03,
    }


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

ONES_IN_BF16: Question = (
    (
        "1,000 ranks contribute 1.0 each, in bf16. What is the sum on a ring, and what is it by a "
        "balanced tree, where neighbours add first, then pairs, then fours?"
    ),
    {
        "1000 both ways": "There are only ones, but the sum does not stay small: bf16 has eight "
        "digits, and from 256 on only every second whole number.",
        "256 on the ring, 1000 by the tree": "At 256 the next bf16 number is 258: another 1 is "
        "half a step, and rounds back. A tree adds numbers of one size, so none is too small.",
        "about 1000 both ways, a little off": "Errors are not always noise. Here is a wall: from "
        "a certain sum on, every further 1 is rounded away.",
        "infinite both ways": "That is fp16's trouble, at 65,504. bf16 has the range of fp32; "
        "what it lacks is digits.",
    },
)
HALF_LOST: Question = (
    (
        "1,024 ranks, numbers between 0.5 and 1.5, a ring in bf16. With 512 ranks the sums were "
        "off by about a fiftieth. How large is the relative error now?"
    ),
    {
        "about 0.004": "That is one rounding in bf16. On a ring there is one for each partial sum "
        "that is passed on.",
        "about 0.03": "That is what the law of the root of N says, and it held up to here. But "
        "sums now pass 256, where a number below 1 is less than half a step.",
        "about 0.5": "The sums stand still near 512: there a step is 4, and no addend reaches half "
        "of it. Half of all that was contributed is missing.",
    },
)
FP32_ACCUMULATOR: Question = (
    (
        "A ring of 64 ranks, bf16 on the wire, sums kept in bf16. Now each rank keeps its sums in "
        "fp32 (and the owner of a chunk rounds its copy as it sends it). What becomes of the error?"
    ),
    {
        "several times smaller: one rounding is left": "So it would be if only raw numbers "
        "crossed the wire. On a ring the partial sum itself is sent, and rounded for it, each hop.",
        "about half: half of the roundings are gone": "None is gone. There was one rounding for "
        "each addition, and now there is one for each crossing: as many.",
        "the same: not one bit changes": "Each rank adds one number and sends the sum on. Whether "
        "it rounds after adding or before sending is the same rounding.",
    },
)
EQUAL_ELEMENTS: Question = (
    (
        "Four real ranks, bf16, gloo. Rank 0 holds 256 in all eight elements, the others hold 1. "
        "The exact sum is 259, and the nearest bf16 number 260. What does the all-reduce leave?"
    ),
    {
        "260 in every element": "That takes an exact sum, rounded once. Here each addition is "
        "rounded, and whether 256 or the ones come first depends on the chunk.",
        "256 in every element": "So it is where 256 is met first. In other chunks the ones come "
        "first, and three of them together are more than half a step.",
        "256 in some, 260 in others, on every rank alike": "Equal inputs, other chunks, other "
        "orders. And each chunk is finished in one place and copied: the ranks agree.",
        "256 on some ranks, 260 on others": "A chunk is added up once, and what is copied is its "
        "result. The difference lies between elements, not between ranks.",
    },
)
CUT_IN_TWO: Question = (
    (
        "100,000 random fp32 numbers on each of four ranks. One ring for all of them, or a ring "
        "for each half, as with two buckets. In how many sums do the last bits differ?"
    ),
    {
        "none: the same numbers are added": "The same numbers, in another order. An element that "
        "was in chunk 1 of the whole is in chunk 2 of its half.",
        "about a third": "An element lies in another chunk of the shorter array, so its four "
        "numbers are added from another rank on. No rank differs from another, nothing is broken.",
        "nearly all": "Many elements keep their chunk, and of the others many round to the same "
        "number in both orders.",
        "any difference is a bug": "It would be one between ranks. Between two ways of cutting "
        "it only shows that the order of additions has changed.",
    },
)
