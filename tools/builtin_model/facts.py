"""Small questions whose answers are right by construction: capitals, opposites, sums, spelling and the like."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from words import (
    BABIES,
    CAPITALS,
    COLOURS,
    DAYS,
    KINDS,
    LEGS,
    MONTHS,
    NUMBERS,
    OPPOSITES,
    PAST_TENSES,
    PLURALS,
    RHYMES,
    SOUNDS,
)

Fact = tuple[str, str]
"""Question and answer."""

PLAIN_KINDS = {"color", "sport", "drink"}
"""Kinds whose things take no article: "Is milk a drink?"."""

INSIDE = {("bird", "animal"), ("insect", "animal"), ("animal", "bird")}
"""Kinds of which one can hold the other, so that "is not" could be wrong."""


def with_article(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _capital_city(r: Random) -> Fact:
    country, city = r.choice(CAPITALS)
    dot = "" if city.endswith(".") else "."
    question = r.choice(
        [
            f"What is the capital of {country}?",
            f"What is the capital city of {country}?",
            f"Name the capital of {country}.",
            f"What's the capital of {country}?",
            f"Do you know the capital of {country}?",
            f"Tell me the capital of {country}.",
        ]
    )
    plain = f"The capital of {country} is {city}{dot}"
    return question, r.choice([plain, plain, plain, f"{city} is the capital of {country}."])


def _opposite(r: Random) -> Fact:
    word, other = r.choice(OPPOSITES)
    question = r.choice(
        [
            f"What is the opposite of {word}?",
            f'What is the opposite of "{word}"?',
            f"What's the opposite of {word}?",
            f"Tell me the opposite of {word}.",
            f"Give me the opposite of the word {word}.",
        ]
    )
    plain = f"The opposite of {word} is {other}."
    return question, r.choice([plain, plain, f'The opposite of "{word}" is "{other}".'])


def _plural(r: Random) -> Fact:
    one, many = r.choice(PLURALS)
    asked = [f"What is the plural of {one}?", f"What is the plural of the word {one}?", f"What's the plural of {one}?"]
    return r.choice(asked), f"The plural of {one} is {many}."


def _past_tense(r: Random) -> Fact:
    now, then = r.choice(PAST_TENSES)
    asked = [
        f"What is the past tense of {now}?",
        f'What is the past tense of "{now}"?',
        f"Give me the past tense of {now}.",
    ]
    return r.choice(asked), f"The past tense of {now} is {then}."


def _baby(r: Random) -> Fact:
    animal, young = r.choice(BABIES)
    asked = [
        f"What is a baby {animal} called?",
        f"What do you call a baby {animal}?",
        f"What is the name for a baby {animal}?",
    ]
    return r.choice(asked), f"A baby {animal} is called {with_article(young)}."


def _rhyme(r: Random) -> Fact:
    word, rhymes = r.choice(RHYMES)
    asked = [f"What rhymes with {word}?", f"Which words rhyme with {word}?", f"Give me words that rhyme with {word}."]
    return r.choice(asked), f"{capital(rhymes)} rhyme with {word}."


def _colour(r: Random) -> Fact:
    thing, colour = r.choice(COLOURS)
    asked = [f"What color is {thing}?", f"Which color is {thing}?", f"Tell me the color of {thing}."]
    return r.choice(asked), f"{capital(thing)} is {colour}."


def _legs(r: Random) -> Fact:
    animal, count = r.choice(list(LEGS.items()))
    whose = with_article(animal)
    return f"How many legs does {whose} have?", f"{capital(whose)} has {NUMBERS[count] if count else 'no'} legs."


def _sound(r: Random) -> Fact:
    animal, sound = r.choice(SOUNDS)
    who = with_article(animal)
    return r.choice([f"What does {who} say?", f"What sound does {who} make?"]), f'{capital(who)} says "{sound}".'


def _sum(r: Random) -> Fact:
    if r.random() < 0.6:
        x, y = r.randint(0, 10), r.randint(0, 10)
        result, word, sign = x + y, "plus", "+"
    else:
        x = r.randint(1, 12)
        y = r.randint(0, x)
        result, word, sign = x - y, "minus", "-"
    question = r.choice(
        [
            f"What is {x} {word} {y}?",
            f"What is {x} {sign} {y}?",
            f"{x} {sign} {y} = ?",
            f"How much is {x} {word} {y}?",
            f"Calculate {x} {sign} {y}.",
        ]
    )
    return question, r.choice([f"{x} {word} {y} is {result}.", f"{x} {sign} {y} = {result}"])


def _day(r: Random) -> Fact:
    i = r.randrange(7)
    where, other = ("after", i + 1) if r.random() < 0.6 else ("before", i - 1)
    question = r.choice([f"What day comes {where} {DAYS[i]}?", f"Which day comes {where} {DAYS[i]}?"])
    return question, f"{DAYS[other % 7]} comes {where} {DAYS[i]}."


def _month(r: Random) -> Fact:
    i = r.randrange(12)
    where, other = ("after", i + 1) if r.random() < 0.6 else ("before", i - 1)
    return f"What month comes {where} {MONTHS[i]}?", f"{MONTHS[other % 12]} comes {where} {MONTHS[i]}."


def _list(r: Random) -> Fact:
    kind = r.choice(list(KINDS))
    count = min(r.choice([2, 3, 3, 3, 4, 5]), len(KINDS[kind]))
    things = r.sample(KINDS[kind], count)
    what = f"{NUMBERS[count]} {kind}s"
    if r.choice([0, 0, 1]):
        answer = "\n".join(f"{number}. {capital(thing)}" for number, thing in enumerate(things, 1))
    else:
        answer = capital(f"{', '.join(things[:-1])} and {things[-1]}.")
    return r.choice(
        [f"List {what}.", f"Name {what}.", f"Give me {what}.", f"Can you name {what}?", f"Tell me {what}."]
    ), answer


def _kind(r: Random) -> Fact:
    kind = r.choice(list(KINDS))
    thing = r.choice(KINDS[kind])
    other = r.choice(list(KINDS))
    named = thing if kind in PLAIN_KINDS else with_article(thing)
    agrees = r.random() < 0.5 or thing in KINDS[other] or other == kind or (kind, other) in INSIDE
    if thing == "orange":
        return "Is orange a color or a fruit?", "Orange is both a color and a fruit."
    if agrees:
        return f"Is {named} {with_article(kind)}?", f"Yes, {named} is {with_article(kind)}."
    question = f"Is {named} {with_article(other)}?"
    return question, f"No, {named} is not {with_article(other)}. It is {with_article(kind)}."


def _counting(r: Random) -> Fact:
    if r.random() < 0.5:
        n = r.randint(1, 30)
        asked = [f"What number comes after {n}?", f"Which number comes after {n}?"]
        return r.choice(asked), f"{n + 1} comes after {n}."
    n = r.randint(3, 10)
    asked = [f"Count to {n}.", f"Can you count to {n}?", f"Please count from 1 to {n}."]
    return r.choice(asked), ", ".join(map(str, range(1, n + 1))) + "."


def _words(longest: int) -> list[str]:
    return [word for words in KINDS.values() for word in words if len(word) <= longest and "-" not in word]


def _first_letter(r: Random) -> Fact:
    word = r.choice(_words(99))
    asked = [f"What letter does {word} start with?", f"What is the first letter of {word}?"]
    return r.choice(asked), f"{capital(word)} starts with the letter {word[0].upper()}."


def _spelling(r: Random) -> Fact:
    word = r.choice(_words(6))
    return r.choice([f"How do you spell {word}?", f"Spell the word {word}."]), "-".join(word.upper()) + "."


WEIGHTS: dict[Callable[[Random], Fact], int] = {
    _capital_city: 6,
    _opposite: 6,
    _plural: 3,
    _past_tense: 4,
    _baby: 3,
    _rhyme: 3,
    _colour: 4,
    _legs: 3,
    _sound: 2,
    _sum: 8,
    _day: 4,
    _month: 3,
    _list: 4,
    _kind: 4,
    _counting: 4,
    _first_letter: 2,
    _spelling: 2,
}
"""How often each sort of question is asked, of 65."""


def fact(r: Random) -> Fact:
    """One question with its answer."""
    return r.choices(list(WEIGHTS), list(WEIGHTS.values()))[0](r)
