"""Pack one epoch after another into rows of 1025 tokens: python pack.py SOURCE WORK EPOCHS

Every row starts where a document starts, and none is cut. Writes WORK/val.npz, then WORK/ep0.npy, ep1.npy, … (uint16,
bit 15: not trained), at most three epochs ahead of the trainer, which removes those it has read and leaves take0, ….
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from corpus import NOT_TRAINED, Document, encode, load_json, load_tokenizer, unflat
from facts import fact

ROW = 1025
HELD_OUT_ROW = 640
AHEAD = 3
FACTS = 12000
"""Questions of facts.py in an epoch; they are drawn afresh for each."""
HAND_WRITTEN = 8
"""How often each hand-written answer comes in an epoch, each time to one of its questions."""
NEAR_FULL = 330
"""With less room than this the largest document that fits is taken, not the next one in random order."""


class Corpus:
    """All documents, and how an epoch is mixed from them."""

    def __init__(self, source: Path, work: Path) -> None:
        self.tokenizer = load_tokenizer(source)
        arrays = np.load(work / "docs.npz")
        real = load_json(source, "real")
        self.stories = unflat(arrays, "stories")
        self.answers = unflat(arrays, "answers")
        self.real_stories = encode(self.tokenizer, [(question, text.strip()) for question, text in real["ts"]])
        self.books = encode(self.tokenizer, [("", text) for text in real["pb"] if len(text) < 3000])
        self.seeds = encode(self.tokenizer, real["seed"])
        self.by_hand = [
            encode(self.tokenizer, [(question, answer) for question in questions])
            for questions, answer in load_json(source, "hand_para")
        ]
        real_held_out = encode(self.tokenizer, [(question, text.strip()) for question, text in real["ts_hold"]])
        self.held_out = {
            "gen": unflat(arrays, "held_out_stories"),
            "qa": unflat(arrays, "held_out_answers"),
            "real": real_held_out,
        }
        newline = self.tokenizer.encode("\n").ids
        # The newline after <|im_end|> is not trained on: the answer is over by then.
        ids = [*self.tokenizer.encode("<|im_end|>").ids, *(token | NOT_TRAINED for token in newline)]
        self.turn_end = np.array(ids, dtype=np.uint16)
        self.text_end = np.array([0], dtype=np.uint16)

    def turn(self, document: Document) -> list[np.ndarray]:
        return [*document, self.turn_end]

    def mixed(self, r: random.Random) -> list[np.ndarray]:
        """The documents of one epoch, each an array of tokens: stories, real stories and books, then chats."""
        documents = list[list[np.ndarray]]()
        for story in self.stories:
            plain = r.random() < 0.3 or len(story[0]) == 0
            documents.append([story[1], self.text_end] if plain else [*self.turn(story), self.text_end])
        for story in self.real_stories:
            plain = r.random() < 0.4
            documents.append([story[1], self.text_end] if plain else [*self.turn(story), self.text_end])
        documents += [[book[1], self.text_end] for book in self.books if r.random() < 0.5]
        documents += self._chats(r)
        return [np.concatenate(parts) for parts in documents]

    def _chats(self, r: random.Random) -> list[list[np.ndarray]]:
        """Questions and answers, a tenth of them two and some three to a chat; a few chats end with a story."""
        turns = [*self.answers, *self.seeds]
        for questions in self.by_hand:
            turns += r.choices(questions, k=HAND_WRITTEN)
        turns += encode(self.tokenizer, [fact(r) for _ in range(FACTS)])
        r.shuffle(turns)
        stories = r.sample(self.stories, min(len(self.stories), len(turns) // 20))
        chats = list[list[np.ndarray]]()
        i = 0
        while i < len(turns):
            draw = r.random()
            count = 2 if draw < 0.10 else 3 if draw < 0.14 else 1
            chat = [part for turn in turns[i : i + count] for part in self.turn(turn)]
            i += count
            if r.random() < 0.03 and stories:
                story = stories.pop()
                if len(story[0]):
                    chat += self.turn(story)
            chats.append([*chat, self.text_end])
        return chats


def fill(lengths: np.ndarray, order: np.ndarray) -> list[list[int]]:
    """Rows of document numbers: the next ones in random order while there is room, then the largest that fits."""
    count, shortest = len(lengths), int(lengths.min())
    used = np.zeros(count, dtype=bool)
    of_length = dict[int, list[int]]()
    for i in order:
        of_length.setdefault(int(lengths[i]), []).append(i)

    def largest(room: int) -> int | None:
        for length in range(room, max(shortest, room - 400) - 1, -1):
            left = of_length.get(length)
            while left and used[left[-1]]:
                left.pop()
            if left:
                return left.pop()
        return None

    rows = list[list[int]]()
    first = 0
    while True:
        while first < count and used[order[first]]:
            first += 1
        if first >= count:
            return rows
        row = [order[first]]
        used[order[first]] = True
        room = ROW - int(lengths[order[first]])
        at = first + 1
        while room >= shortest:
            chosen = None
            if room > NEAR_FULL:
                while at < count and used[order[at]]:
                    at += 1
                if at < count and lengths[order[at]] <= room:
                    chosen = order[at]
            if chosen is None:
                chosen = largest(room)
            if chosen is None:
                break
            used[chosen] = True
            row.append(chosen)
            room -= int(lengths[chosen])
        rows.append(row)


def epoch(corpus: Corpus, number: int) -> np.ndarray:
    """Rows [rows, 1025] of one epoch, which its number determines."""
    r, draw = random.Random(1000 + number), np.random.default_rng(number)
    started = time.time()
    documents = [document for document in corpus.mixed(r) if len(document) <= ROW]
    order = draw.permutation(len(documents))
    lengths = np.array([len(document) for document in documents])
    rows = fill(lengths, order)
    packed = np.full((len(rows), ROW), NOT_TRAINED, dtype=np.uint16)
    for row, members in zip(packed, rows, strict=True):
        tokens = np.concatenate([documents[i] for i in members])
        row[: len(tokens)] = tokens
    packed = packed[draw.permutation(len(packed))]
    filled = lengths.sum() / packed.size
    print(f"epoch {number}: {len(packed)} rows, {filled:.2%} filled, in {time.time() - started:.1f} s", flush=True)
    return packed


def held_out_rows(corpus: Corpus, documents: Sequence[Document]) -> np.ndarray:
    """One document a row [documents, 640], padded or cut."""
    rows = np.full((len(documents), HELD_OUT_ROW), NOT_TRAINED, dtype=np.uint16)
    for row, document in zip(rows, documents, strict=True):
        tokens = np.concatenate([*corpus.turn(document), corpus.text_end])[:HELD_OUT_ROW]
        row[: len(tokens)] = tokens
    return rows


def main(source: Path, work: Path, epochs: int) -> None:
    corpus = Corpus(source, work)
    np.savez(work / "new_val.npz", **{name: held_out_rows(corpus, rows) for name, rows in corpus.held_out.items()})
    (work / "new_val.npz").rename(work / "val.npz")  # under its own name only once it is whole
    for number in range(epochs):
        while number >= AHEAD and not (work / f"take{number - AHEAD + 1}").exists():
            time.sleep(0.5)
        np.save(work / "new.npy", epoch(corpus, number))
        (work / "new.npy").rename(work / f"ep{number}.npy")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
