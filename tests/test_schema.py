"""Data becomes dataclasses when it fits them; when it does not, the error says where and why, as data."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
import pytest

from autotune import schema
from autotune.errors import InvalidData, MissingKey, UnknownKey, WrongValue


@dataclass(frozen=True)
class Part:
    size: Annotated[int, schema.whole_number(1)]
    share: Annotated[float, schema.number(0.0, 1.0)] = 0.5


@dataclass(frozen=True)
class Whole:
    name: str = ""
    mode: Literal["", "fast"] = ""
    hours: Annotated[str, msgspec.Meta(pattern=r"^\d*\Z", title="an hour")] = ""
    part: Part | None = None
    parts: tuple[Part, ...] = ()
    named: dict[str, Part] = field(default_factory=dict)
    seconds: float | Part = 1.0
    bound: Annotated[float, schema.number()] = 0.0
    free: float = 0.0
    anything: Any = None


def fault(data: object, **options: Any) -> InvalidData:
    with pytest.raises(InvalidData) as caught:
        schema.convert(Whole, data, **options)
    return caught.value


class TestConverting:
    def test_nested_tables_and_lists_become_dataclasses_and_tuples(self) -> None:
        data = {"part": {"size": 1}, "parts": [{"size": 2}, {"size": 3}], "named": {"a": {"size": 4}}}
        whole = schema.convert(Whole, data)
        assert whole == Whole(part=Part(1), parts=(Part(2), Part(3)), named={"a": Part(4)})

    def test_of_a_union_the_fitting_option_is_taken_and_what_has_no_schema_as_it_is(self) -> None:
        assert schema.convert(Whole, {"seconds": 2}).seconds == 2.0
        assert schema.convert(Whole, {"seconds": {"size": 2}}).seconds == Part(2)
        anything = [1, {"a": (math.inf, None)}]
        assert schema.convert(Whole, {"anything": anything}).anything == anything

    def test_unknown_keys_are_ignored_unless_they_are_forbidden(self) -> None:
        assert schema.convert(Whole, {"colour": 1, "part": {"size": 1, "colour": 2}}) == Whole(part=Part(1))
        error = fault({"part": {"size": 1, "colour": 2}}, exact=True)
        assert isinstance(error, UnknownKey)
        assert (error.keys, error.value, error.known) == (("part", "colour"), 2, ("size", "share"))


class TestFaults:
    def test_a_wrong_value_reads_as_a_short_sentence_in_the_words_of_its_users(self) -> None:
        assert str(fault({"parts": [{"size": 0}]})) == "'parts[0].size' must be at least 1, not 0"
        assert str(fault(5)) == "a whole number is not an object"
        assert str(fault({"part": 5}, table="a section")) == "'part' must be a section, not a whole number"
        assert fault({"name": 5}, keys=("job", 3)).keys == ("job", 3, "name")
        assert len(str(fault({"part": {"size": -(10**4000)}}))) < 400
        assert "a text that is not Unicode" in str(fault({"\ud800": 1}))

    @pytest.mark.parametrize(
        ("data", "keys", "expected", "given"),
        [
            ({"name": 5}, ("name",), "text", "a whole number"),
            ({"part": 5}, ("part",), "an object", "a whole number"),
            ({"parts": {}}, ("parts",), "a list", "an object"),
            ({"parts": [{"size": 1}, {"size": True}]}, ("parts", 1, "size"), "a whole number", "true or false"),
            ({"parts": [{"size": 0}]}, ("parts", 0, "size"), "at least 1", "0"),
            ({"named": {"a": {"size": 1}, "b": {"size": "x"}}}, ("named", "b", "size"), "a whole number", "text"),
            ({"part": {"size": 1, "share": 2}}, ("part", "share"), "at most 1", "2"),
            ({"part": {"size": 1, "share": math.nan}}, ("part", "share"), "a finite number below 2^63", "nan"),
            ({"part": {"size": 2**63}}, ("part", "size"), "a finite number below 2^63", str(2**63)),
            ({"bound": -math.inf}, ("bound",), "a finite number below 2^63", "-inf"),
            ({"free": 10**400}, ("free",), "a finite number", str(10**400)[:200] + "..."),
            ({"free": None}, ("free",), "a number", "null"),
            ({"mode": "slow"}, ("mode",), "one of '', fast", "'slow'"),
            ({"mode": ["fast"]}, ("mode",), "text", "a list"),
            ({"hours": "noon"}, ("hours",), "an hour", "'noon'"),
            ({"hours": 5}, ("hours",), "an hour", "a whole number"),
            ({"seconds": "x"}, ("seconds",), "a number", "text"),
            ({"seconds": {"size": 0}}, ("seconds", "size"), "at least 1", "0"),
            ([], (), "an object", "a list"),
        ],
    )
    def test_a_wrong_value_is_found_however_deep_it_is(
        self, data: object, keys: tuple[str | int, ...], expected: str, given: str
    ) -> None:
        error = fault(data)
        assert isinstance(error, WrongValue)
        assert (error.keys, error.expected, error.found) == (keys, expected, given)

    def test_a_missing_key_is_named_with_its_table(self) -> None:
        error = fault({"parts": [{"share": 1}]})
        assert isinstance(error, MissingKey)
        assert (error.keys, str(error)) == (("parts", 0), "'parts[0].size' is missing")


class TestPlain:
    def test_it_gives_the_json_that_the_fields_are_in(self) -> None:
        value = Whole("a", part=Part(1), parts=(Part(2),), anything=[(1, 2), None])
        assert json.dumps(schema.plain(value)) == (
            '{"name": "a", "mode": "", "hours": "", "part": {"size": 1, "share": 0.5},'
            ' "parts": [{"size": 2, "share": 0.5}], "named": {}, "seconds": 1.0, "bound": 0.0, "free": 0.0,'
            ' "anything": [[1, 2], null]}'
        )

    def test_subclasses_of_text_and_numbers_are_what_they_stand_for_and_what_json_does_not_have_is_refused(
        self,
    ) -> None:
        class Text(str): ...

        class Number(float): ...

        values = schema.plain([Text("a"), Number(2.5)])
        assert [(value, type(value)) for value in values] == [("a", str), (2.5, float)]
        with pytest.raises(TypeError, match="has no form in JSON"):
            schema.plain(Whole(anything=object()))
