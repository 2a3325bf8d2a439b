"""Dataclasses as schemas: check data from TOML or JSON against one, and find what is wrong with it.

msgspec converts and checks. Its errors are sentences that leave out the wrong value, so where it refuses, `convert`
looks for the fault itself and raises it as data; each reader words it for its users.

A field's type is the schema: a dataclass, `tuple[X, ...]`, `dict[str, X]`, `Literal`, `X | None`, or a plain type. In
`Annotated[X, Meta(...)]` the bounds, the pattern and the description are msgspec's; a `title` says what the value must
be, for error messages.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from autotune.errors import InvalidData, MissingKey, UnknownKey, WrongValue

if TYPE_CHECKING:
    from msgspec import Meta

_LARGEST = 2**63 - 1
_MAX_SHOWN = 200  # characters of a wrong value
LAST_MOMENT = 1e11  # in the year 5138
_MAX_S = 10**9  # seconds are 31 years; to wait for longer is an error of the operating system
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}

T = TypeVar("T")
Keys = tuple[str | int, ...]


def convert(kind: type[T], data: object, *, exact: bool = False, keys: Keys = (), table: str = "an object") -> T:
    """Make a dataclass of plain data.

    Nothing is converted but whole numbers to floats and lists to tuples.

    Args:
        data: Mappings, lists, text, numbers, booleans and None.
        exact: Refuse keys that the dataclasses do not have. Otherwise they are ignored.
        keys: Where the data is in its document. Errors name places from there.
        table: What users call a mapping.

    Raises:
        InvalidData: The data does not fit. The error names the first place where it does not.
    """
    import msgspec  # here, because a command that reads no file should not pay for it

    if exact:
        _refuse_unknown_keys(kind, data, keys)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError:
        raise _fault(kind, data, keys, table) from None
    except UnicodeEncodeError:  # JSON may hold half of a character, as a key or where msgspec looks a text up
        raise InvalidData("it holds a text that is not Unicode", keys) from None


def sound(kind: type[T], records: Iterable[object]) -> Iterator[T]:
    """Yield a dataclass for each record that `convert` takes."""
    for record in records:
        with suppress(InvalidData):
            yield convert(kind, record)


def parsed_json(data: bytes) -> Any:
    """Parse JSON that anybody may have written.

    Raises:
        InvalidData: It is none.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise InvalidData("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InvalidData(str(error)) from None
    except UnicodeDecodeError:
        raise InvalidData("it is not UTF-8 text") from None
    except ValueError:  # which is how Python refuses to read a long number
        raise InvalidData("it has a number of too many digits") from None


def plain(value: Any) -> Any:
    """Return a dataclass as dicts, lists, text and numbers, down to its last part.

    Raises:
        TypeError: A part is of a type that JSON does not have.
    """
    import msgspec

    return msgspec.to_builtins(value, enc_hook=_without_subclass)


def _without_subclass(value: object) -> object:
    for kind in (str, int, float):  # TVM's strings and NumPy's doubles are subclasses
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def whole_number(least: int = -(2**63), description: str = "", title: str | None = None, most: int = _LARGEST) -> Meta:
    """Return the constraint on an integer from `least` to `most`, which fits in 64 bits."""
    import msgspec

    return msgspec.Meta(ge=least, le=most, description=description, title=title)


def number(least: float = -float(_LARGEST), most: float | None = None, description: str = "") -> Meta:
    """Return the constraint on a float from `least` to `most`. Those left out keep it finite, below 2^63."""
    import msgspec

    if most is not None:
        return msgspec.Meta(ge=least, le=most, description=description)
    return msgspec.Meta(ge=least, lt=float(_LARGEST), description=description)


def positive() -> Meta:
    """Return the constraint on a float above 0 and below 2^63."""
    import msgspec

    return msgspec.Meta(gt=0.0, lt=float(_LARGEST), title="a number above 0")


def moment() -> Meta:
    """Return the constraint on a point in time, in seconds since 1970: one that calendars have."""
    return number(-LAST_MOMENT, LAST_MOMENT)


@cache
def field_types(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, with their annotations."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def meta_of(hint: Any) -> Meta | None:
    """Return the constraints of an annotated type; None where there are none."""
    return hint.__metadata__[0] if typing.get_origin(hint) is Annotated else None


def type_name(value: object, table: str = "an object") -> str:
    """Say in plain words of which type a value is."""
    if isinstance(value, Mapping):
        return table
    if isinstance(value, (list, tuple)):
        return "a list"
    return _TYPE_NAMES.get(type(value), "a date or time")


def describe(hint: Any) -> str:
    """Say what a value of a plain type may be, such as `a whole number, at least 1`."""
    meta = meta_of(hint)
    kind = _option(hint, None)
    if typing.get_origin(kind) is Literal:
        return _choices(kind)
    if meta is None or meta.title or meta.ge is None:
        return (meta and meta.title) or _TYPE_NAMES[kind]
    limits = f"from {meta.ge:g} to {meta.le:g}" if meta.le not in (None, _LARGEST, _MAX_S) else f"at least {meta.ge:g}"
    return f"{_TYPE_NAMES[kind]}, {limits}"


def _choices(kind: Any) -> str:
    return f"one of {', '.join(choice or repr(choice) for choice in typing.get_args(kind))}"


def _refuse_unknown_keys(hint: Any, data: object, keys: Keys) -> None:
    if not isinstance(data, (Mapping, list)):
        return
    kind = _option(hint, data)
    if is_dataclass(kind) and isinstance(data, Mapping):
        names = tuple(field.name for field in fields(kind))
        for key, value in data.items():
            if key not in names:
                raise UnknownKey((*keys, key), value, names)
    for key, part_hint, part in _parts(kind, data):
        _refuse_unknown_keys(part_hint, part, (*keys, key))


def _fault(hint: Any, data: object, keys: Keys, table: str) -> InvalidData:
    """Find the innermost value that does not fit its type, given that `data` does not."""
    import msgspec

    kind = _option(hint, data)
    for key, part_hint, part in _parts(kind, data):
        try:
            msgspec.convert(part, part_hint)
        except msgspec.ValidationError:
            return _fault(part_hint, part, (*keys, key), table)
    if is_dataclass(kind) and isinstance(data, Mapping):
        return MissingKey(keys, next(name for name in _required(kind) if name not in data))
    return _wrong_value(hint, data, keys, table)


def _required(kind: Any) -> Iterator[str]:
    return (field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING)


def _option(hint: Any, data: object) -> Any:
    """Return the type without annotation; of a union, the option that the data is meant for."""
    if typing.get_origin(hint) is Annotated:
        return _option(hint.__origin__, data)
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    options = [_option(option, data) for option in typing.get_args(hint) if option is not types.NoneType]
    return next((option for option in options if _is_table(option) == isinstance(data, Mapping)), options[0])


def _is_table(kind: Any) -> bool:
    return is_dataclass(kind) or typing.get_origin(kind) in (dict, Mapping)


def _parts(kind: Any, data: object) -> Iterator[tuple[str | int, Any, Any]]:
    """Yield key, type and value of each part of a table or list."""
    origin = typing.get_origin(kind)
    args = typing.get_args(kind)
    if isinstance(data, Mapping):
        if is_dataclass(kind):
            hints = field_types(typing.cast(Any, kind))
            yield from ((key, hints[key], value) for key, value in data.items() if key in hints)
        elif _is_table(kind):
            yield from ((key, args[1], value) for key, value in data.items())
    elif origin is tuple and isinstance(data, (list, tuple)):
        yield from ((index, args[0], value) for index, value in enumerate(data))


def _wrong_value(hint: Any, value: object, keys: Keys, table: str) -> WrongValue:
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ()
    meta = next(filter(None, map(meta_of, (hint, *options))), None)
    kind = _option(hint, value)
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    plain = type(choices[0]) if choices else typing.get_origin(kind) or kind
    of_type = type(value) is plain or (plain is float and type(value) is int)
    if meta is not None and meta.title:
        expected = meta.title
    elif not of_type:
        expected = table if _is_table(kind) else "a list" if plain is tuple else _TYPE_NAMES[plain]
    elif choices:
        expected = _choices(kind)
    else:
        expected = _bound(meta, typing.cast(float, value))
    return WrongValue(keys, expected, value, _shown(value) if of_type else type_name(value, table))


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except ValueError:  # Python refuses to write a long number
        return "a number of too many digits"
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."


def _bound(meta: Meta | None, value: float) -> str:
    """Say which bound a number breaks."""
    if meta is None:
        return "a finite number"
    if meta.ge is not None and -_LARGEST < meta.ge > value:
        return f"at least {meta.ge:g}"
    if meta.le is not None and value > meta.le < _LARGEST:
        return f"at most {meta.le if isinstance(meta.le, int) else format(meta.le, 'g')}"
    return "a finite number below 2^63"  # an infinity, or NaN, which is below and above nothing


def at_least(least: float, description: str) -> Meta:
    """Describe a number with a lower bound, such as a duration in seconds."""
    return number(least, _MAX_S, description)


def share(description: str, least: float = 0.0) -> Meta:
    """Describe a number up to 1."""
    return number(least, 1.0, description)


def titled(title: str) -> Meta:
    """Name what a value must be, for error messages."""
    import msgspec

    return msgspec.Meta(title=title)


def text(description: str, pattern: str | None = None, title: str | None = None) -> Meta:
    """Describe a text that has to match a pattern; `title` says what that is."""
    import msgspec

    return msgspec.Meta(pattern=pattern, title=title, description=description)
