"""Reads a plan (csrc/tree/plan.h) into plain Python."""

from collections import namedtuple

HEADER = namedtuple(
    "Header",
    "magic num_words words_checksum num_tokens num_queries num_keys query_start key_start window indexed "
    "tree_checksum query_checksum "
    "query_tile key_tile items min_tiles num_query_tiles num_key_tiles "
    "num_forward_items forward_items forward_runs forward_start "
    "num_merges merges num_slots num_backward_items backward_items backward_runs num_unseen backward_plan seen_keys",
)
Run = namedtuple("Run", "begin end partial ordinal")
ForwardItem = namedtuple("ForwardItem", "query_tile runs slot")
Merge = namedtuple("Merge", "query_tile slot_begin slot_end")
BackwardItem = namedtuple("BackwardItem", "key_tile runs turn")


class Plan:
    """`forward`, `merges` and `backward` are lists, `seen` has a bool for each key.

    An item's runs are those of key tiles or of query tiles. `of_backward` is the plan with the tiles of the backward.
    """

    def __init__(self, words):
        whole, words = words, words.tolist()
        self.header = h = HEADER(*words[: len(HEADER._fields)])

        def rows(offset, count, width):
            return [words[offset + i * width : offset + (i + 1) * width] for i in range(count)]

        def runs(offset, begin, end):
            return [Run(*row) for row in rows(offset + 4 * begin, end - begin, 4)]

        self.forward = [
            ForwardItem(tile, runs(h.forward_runs, begin, end), slot)
            for tile, begin, end, slot in rows(h.forward_items, h.num_forward_items, 4)
        ]
        self.merges = [Merge(*row) for row in rows(h.merges, h.num_merges, 3)]
        self.backward = [
            BackwardItem(tile, runs(h.backward_runs, begin, end), turn)
            for tile, begin, end, turn in rows(h.backward_items, h.num_backward_items, 4)
        ]
        self.of_backward = Plan(whole[h.backward_plan :]) if h.backward_plan else self
        self.seen = [
            bool(words[h.seen_keys + key // 32] >> key % 32 & 1) for key in range(h.num_key_tiles * h.key_tile)
        ]

    def forward_tiles(self):
        """(query tile, key tile, partial) of all the work, item by item."""
        return [
            (item.query_tile, tile, bool(run.partial))
            for item in self.forward for run in item.runs for tile in range(run.begin, run.end)
        ]  # fmt: skip

    def backward_tiles(self):
        return [
            (tile, item.key_tile, bool(run.partial))
            for item in self.backward for run in item.runs for tile in range(run.begin, run.end)
        ]  # fmt: skip
