"""A command of a space: words with placeholders, or text for the shell, in which a value never is syntax.

Text is split into words once, before a value is known, so a value cannot become another word or a command. What needs
a shell has `shell = true` beside it. Its placeholders take only values that no shell reads as more than a word; the
variables `AUTOTUNE_NAME` carry all others.
"""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from autotune.errors import InvalidData
from autotune.schema import titled

Value = bool | int | float | str
Written = Annotated[str | tuple[str, ...], titled("text, or a list of a program and its arguments")]

PREFIX = "AUTOTUNE_"  # of the variables that carry values
_SHELL = ("/bin/sh", "-c")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Text that a shell splits into the same words as `shlex`: quoted, escaped, or without a meaning of its own.
_PLAIN = re.compile(
    r"""(?: [ \t] | [^][ \t\n\r'"\\|&;<>()$`*?~\#] | (?<=[^ \t])[~\#] | \\[^\n] | '[^']*'
    | "(?: [^"\\$`] | \\[^$`\n] )*" )*""",
    re.VERBOSE,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OF_SHELLS = re.compile(
    r"[!.:{}] | \[\[ | alias | bg | break | case | cd | continue | do | done | elif | else | esac | eval | exec | exit"
    r"| export | fg | fi | for | function | getopts | hash | if | jobs | let | local | read | readonly | return"
    r"| select | set | shift | source | then | trap | type | typeset | ulimit | umask | unalias | unset | until | wait"
    r"| while",
    re.VERBOSE,
)
# Values that stand in text for a shell, and in text that computes, where a word is the name of a variable.
_HARMLESS = re.compile(r"[A-Za-z0-9_.+-]*"), "letters, digits and _.+-"
_WHOLE = re.compile(r"0|-?[1-9][0-9]*"), "whole numbers"
# After these a value would be a part of a variable's name, or the word that ends a here-document.
_JOINED = re.compile(r"(\$(\w*|\{[^}]*)|<<-?[ \t]*[\\'\"]?[A-Za-z0-9_.+-]*)\Z")
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*([^\s<>;&|()]+)")
_QUOTES = str.maketrans("", "", "\\'\"")
# Shells that compute run what a variable holds, such as `x[$(touch made)]`.
_COMPUTES = re.compile(r"\(\(|\$\[|\[\[|\b(eval|let|declare|typeset)\b")
# A placeholder where a shell expects a program.
_CHOSEN_PROGRAM = re.compile(r"(^|[;&|(\n`])\s*[^\s;&|]*\{")
_MAX_COMMAND_LENGTH = 16_384  # characters of a command
_SHOWN = 40  # characters of what is refused


@dataclass(frozen=True)
class Command:
    """A command with placeholders.

    Attributes:
        words: The program and its arguments; one text where a shell runs it.
        shell: Whether `/bin/sh` runs it.
    """

    words: tuple[str, ...]
    shell: bool = False

    @classmethod
    def of(cls, written: Written, shell: bool) -> Command:
        """Take a command as it stands in a space file.

        Raises:
            InvalidData: It is no command, or needs a shell and does not say so.
        """
        if shell and not isinstance(written, str):
            raise InvalidData("shell = true is for a command that is text; a list is run without a shell")
        if sum(map(len, written)) > _MAX_COMMAND_LENGTH:
            raise InvalidData(
                f"a command has more than {_MAX_COMMAND_LENGTH} characters; put it into a script, as one of the files"
            )
        command = cls((written,) if shell and isinstance(written, str) else _words(written), shell)
        if not command.words or not command.words[0].strip():
            raise InvalidData("a command needs a program")
        if not all(map(is_text, command.words)):
            raise InvalidData("a command has a null character, or is not Unicode")
        return command

    @property
    def template(self) -> tuple[str, ...]:
        """What is run, with its placeholders: all words, those of the shell included."""
        return (*_SHELL, *self.words) if self.shell else self.words

    @property
    def program(self) -> str:
        """The program: the first word."""
        return self.words[0].split()[0] if self.shell else self.words[0]

    @property
    def is_fixed(self) -> bool:
        """Whether the programs are the same for all combinations, and not made by a build."""
        if self.shell:
            return not _CHOSEN_PROGRAM.search(self.words[0])
        return not any(_placeholders(self.program)) and ("/" not in self.program or self.program.startswith("/"))

    def check(self, parameters: Mapping[str, Sequence[Value]]) -> None:
        """Check its placeholders, and for a shell the values that they take.

        Raises:
            InvalidData: One names no parameter, or has a value that a shell could read as more than a word.
        """
        for word in self.words:
            check_placeholders(word, parameters)
        if self.shell:
            _check_shell(self.words[0], parameters)

    def filled(self, values: Mapping[str, Value]) -> list[str]:
        """Return the words with values in their placeholders.

        An argument that is nothing but a placeholder is left out where the value is empty.

        Args:
            values: Values of the parameters that `check` was given.
        """
        texts = {name: text_of(value) for name, value in values.items()}
        words = [string.Formatter().vformat(word, (), texts) for word in self.words]
        if self.shell:
            return [*_SHELL, *words]
        kept = zip(words[1:], self.words[1:], strict=True)
        return [words[0], *(word for word, template in kept if word or not template)]


def text_of(value: Value) -> str:
    """Return a value as commands get it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def is_text(text: str) -> bool:
    """Return whether a program can be given a text: it is Unicode without a null character."""
    return "\0" not in text and text == text.encode(errors="ignore").decode()


def check_placeholders(text: str, names: Iterable[str]) -> None:
    """Check the placeholders of a text.

    Raises:
        InvalidData: A brace is open, or a placeholder names none of `names`.
    """
    for name in _placeholders(text):
        if name not in names:
            raise InvalidData(f"the placeholder {{{name}}} names no parameter; write {{{{ and }}}} for braces")


def _placeholders(text: str) -> Iterator[str]:
    return (name for _, name in _parsed(text) if name is not None)


def _parsed(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the text before each placeholder, and its name; None behind the last one."""
    try:
        pieces = list(string.Formatter().parse(text))
    except ValueError as error:
        raise InvalidData(f"{text[:_SHOWN]!r}: {error}; write {{{{ and }}}} for braces") from None
    for before, name, form, conversion in pieces:
        if name is not None and (form or conversion or not _NAME.fullmatch(name)):
            raise InvalidData(f"the placeholder {name[:_SHOWN]!r} is no name; write {{{{ and }}}} for braces")
        yield before, name


def _words(written: Written) -> tuple[str, ...]:
    """Return a command's words, as a shell splits them.

    Raises:
        InvalidData: A shell would do more than that.
    """
    if not isinstance(written, str):
        return written
    text = written.strip()
    try:
        words = shlex.split(text)
    except ValueError:
        raise InvalidData(f"{text[:_SHOWN]!r} has an open quotation or ends with a backslash") from None
    plain = _PLAIN.match(text)
    if plain is not None and plain.end() < len(text):
        raise _needs_shell(text[plain.end() :])
    if words and (_OF_SHELLS.fullmatch(words[0]) or _ASSIGNMENT.match(text)):
        raise _needs_shell(words[0])
    return tuple(words)


def _needs_shell(part: str) -> InvalidData:
    shown = part if len(part) <= _SHOWN else f"{part[:_SHOWN]}..."
    return InvalidData(f"{shown!r} is for a shell; write shell = true beside the command, or quote it")


def _check_shell(text: str, parameters: Mapping[str, Sequence[Value]]) -> None:
    """Check that no value of text for a shell can be anything but a part of a word.

    Raises:
        InvalidData: One can.
    """
    pieces = list(_parsed(text))
    computes = _COMPUTES.search(text) is not None
    for place, (before, name) in enumerate(pieces):
        if name is None:
            continue
        following = pieces[place + 1][0] if place + 1 < len(pieces) else ""
        if _JOINED.search(before) or following.startswith(("<", ">")):
            raise InvalidData(f"a shell may read {{{name}}} as a part of what stands beside it; {_remedy(name)}")
        _check_values(name, parameters[name], *(_WHOLE if computes else _HARMLESS))
    if computes:  # with the variables as well
        for name, values in parameters.items():
            _check_values(name, values, *_HARMLESS)
    _check_here_documents(text, pieces, parameters)


def _check_values(name: str, values: Sequence[Value], allowed: re.Pattern[str], described: str) -> None:
    for text in map(text_of, values):
        if not allowed.fullmatch(text):
            raise InvalidData(
                f"{name!r} has the value {text[:_SHOWN]!r}, and this text for a shell takes {described} only;"
                f" {_remedy(name)}"
            )


def _remedy(name: str) -> str:
    return f'write "${PREFIX}{name}", or a command without a shell'


def _check_here_documents(
    text: str, pieces: Sequence[tuple[str, str | None]], parameters: Mapping[str, Sequence[Value]]
) -> None:
    """Check that no value makes a line that ends a here-document, behind which lines are commands."""
    without_values = "".join(before if name is None else f"{before}\0" for before, name in pieces)
    lines = {line.replace("\0", "").strip("\t") for line in without_values.split("\n") if "\0" in line}
    used = {name for _, name in pieces if name is not None}
    for end in {word.translate(_QUOTES) for word in _HERE_DOCUMENT.findall(text)}:
        for name in used:
            if end in lines or any(value and value in end for value in map(text_of, parameters[name])):
                raise InvalidData(f"a value of {name!r} may end the here-document {end[:_SHOWN]!r}; {_remedy(name)}")
