"""Mutate the file of a plan: by its grammar, and in lines and characters.

Keys that no plan has, at the top and in tables; values of other types and beyond all bounds; digits of other scripts;
blocks that are empty, twice, or very many; names that are long or no text; tables and lists in each other; statements
over very many lines; lines that are lost, doubled and moved; characters that are others.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_KEYS = ("threads", "model", "memory", "facts", "format", "blocks", "beside", "layout", "algorithm", "operators", "x.y")
_VALUES = (
    *("-7", "0", "1", "9223372036854775808", "1e400", "nan", "true", "''", "[]", "{}", "[[1], [2]]", "1979-05-27"),
    *('"NCHW1\u0662c"', '"NCHW33c"', '"winograd-2x2"', '"\\u0000"', '["conv2d_1", "conv2d_1"]', "{ a = { b = 1 } }"),
)
_CHARACTERS = "\u0661\uff11\u00e9\x00\x1b\ud7ff\"'#=[]{}.,\n\r\t -_0aA"


def mutate(text: str, draw: random.Random) -> str:
    """Return a text with one to three changes."""
    for _ in range(draw.randint(1, 3)):
        text = draw.choices(_KINDS, _WEIGHTS)[0](text, draw)
    return text


def _line(text: str, draw: random.Random) -> str:
    """Lose, double or move a line, or put a key somewhere."""
    lines = text.split("\n")
    place = draw.randrange(len(lines))
    match draw.randrange(5):
        case 0:
            del lines[place]
        case 1:
            lines.insert(draw.randrange(len(lines)), lines[place])
        case 2:
            lines.insert(
                place, draw.choice(("[facts]", "[blocks]", "[[blocks]]", "[blocks.facts]", "[[facts]]", "[x]"))
            )
        case _:
            lines.insert(place, f"{draw.choice(_KEYS)} = {draw.choice(_VALUES)}")
    return "\n".join(lines)


def _top(text: str, draw: random.Random) -> str:
    """Put a key at the top, where facts do not stand."""
    return f"{draw.choice(_KEYS)} = {draw.choice(_VALUES)}\n{text}"


def _value(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    places = [place for place, line in enumerate(lines) if " = " in line]
    if places:
        place = draw.choice(places)
        lines[place] = f"{lines[place].partition(' = ')[0]} = {draw.choice(_VALUES)}"
    return "\n".join(lines)


def _character(text: str, draw: random.Random) -> str:
    place = draw.randrange(len(text) + 1)
    return text[:place] + draw.choice(_CHARACTERS) + text[place + draw.randrange(2) :]


def _big(text: str, draw: random.Random) -> str:
    """Add very much of one kind."""
    count = draw.choice((50, 3000, 19_000, 25_000, 300_000))
    match draw.randrange(7):
        case 0:
            return text + "".join(f'[[blocks]]\noperators = ["z_{number}"]\n' for number in range(count))
        case 1:
            return f"{text}[[blocks]]\noperators = [{', '.join(f'{chr(34)}z_{n}{chr(34)}' for n in range(count))}]\n"
        case 2:
            return text + "[[blocks]]\noperators = [\n" + '"y", # ]\n' * count + "]\nthreads = 0\n"
        case 3:
            return f"{text}[{'.'.join(['x'] * count)}]\n"
        case 4:
            return f"{text}x = {'[' * count}{']' * count}\n"
        case 5:
            return text + "".join(f"[x.y{number}]\n" for number in range(count))
        case _:
            return f'{text}[[blocks]]\noperators = ["{"n" * count}"]\nthreads = -1\n'


_KINDS: tuple[Callable[[str, random.Random], str], ...] = (_line, _top, _value, _character, _big)
_WEIGHTS = (30, 15, 30, 24, 1)
