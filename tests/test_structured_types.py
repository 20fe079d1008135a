"""What an `output=` type means (T10): its schema, what is asked of the model, and how an answer is read."""

from __future__ import annotations

import json
import math
import re
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    PlainSerializer,
    RootModel,
    computed_field,
    field_validator,
)
from typing_extensions import TypedDict

from middlechain import ConfigurationError, Settings
from middlechain.structured import Structure, Unfit, structure_of

T = TypeVar("T")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(Enum):
    LOW = 1


class Place(BaseModel):
    city: str
    zip: int | None = None


@dataclass
class Money:
    amount: Decimal
    currency: Literal["CHF", "EUR"] = "CHF"

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("nobody owes less than nothing")


class Movie(TypedDict):
    title: str
    seen: NotRequired[date]


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Tree(BaseModel):
    """A tree."""

    value: int
    children: list[Tree] = []


class Box(BaseModel, Generic[T]):
    held: T


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Scores(RootModel[dict[str, int]]):
    """By player."""


class Renamed(BaseModel):
    """Each way to give a field another name, and what pydantic writes beside the fields."""

    model_config = ConfigDict(extra="forbid")
    one: int = Field(alias="eins")
    two: int = Field(validation_alias=AliasChoices("zwei", "deux"))
    three: int = Field(serialization_alias="drei")
    numbers: Json[list[int]]

    @computed_field
    def total(self) -> int:
        return self.one + self.two + self.three


class Camel(BaseModel):
    first_name: str = Field(alias="firstName")


class NoSchema:
    """Has no JSON form."""


class Odd(BaseModel):
    thing: Any = NoSchema()
    count: int = 3
    top: float = math.inf


class Unsendable(BaseModel):
    model_config = ConfigDict(json_schema_extra={"made of": NoSchema()})  # type: ignore[dict-item]  # that is the point


def of(type: Any) -> Structure:
    structure = structure_of(type, "the agent 'triage'")
    assert structure is not None
    return structure


def unfit(type: Any, text: str) -> str:
    with pytest.raises(Unfit) as caught:
        of(type).parse(text)
    assert caught.value.__cause__ is caught.value.__context__ is None, "pydantic's error would quote the answer"
    return str(caught.value)


# Reading and writing: a type, a value of it, its text, and a text that does not fit

CASES: list[tuple[Any, Any, str, str]] = [
    (Place, Place(city="Zürich"), '{"city":"Zürich","zip":null}', '{"zip":1}'),
    (Money, Money(Decimal("1.50")), '{"amount":"1.50","currency":"CHF"}', '{"amount":"x"}'),
    (Movie, {"title": "M", "seen": date(2024, 1, 1)}, '{"title":"M","seen":"2024-01-01"}', '{"seen":"2024-01-01"}'),
    (Movie, {"title": "M"}, '{"title":"M"}', '{"title":1}'),
    (Point, Point(1, 2.5), "[1,2.5]", "[]"),
    (Color, Color.RED, '"red"', '"green"'),
    (Level, Level.LOW, "1", "2"),
    (Literal["a", 1], "a", '"a"', '"b"'),
    (int | list[int], [1, 2], "[1,2]", '"x"'),
    (str | int, "1", '"1"', "[]"),
    (Place | None, None, "null", "{}"),
    (Place | None, Place(city="x", zip=8000), '{"city":"x","zip":8000}', "1"),
    (type(None), None, "null", "0"),
    (list[Place], [Place(city="x")], '[{"city":"x","zip":null}]', "[1]"),
    (dict[str, int], {"a": 1}, '{"a":1}', '{"a":"x"}'),
    (dict[int, Color], {1: Color.BLUE}, '{"1":"blue"}', '{"x":"blue"}'),
    (tuple[int, ...], (1, 2), "[1,2]", "{}"),
    (set[int], {7}, "[7]", '["x"]'),
    (int, 10**4000, "1" + "0" * 4000, "1.5"),
    (int, -1, "-1", "1" * 5000),
    (float, 1.5, "1.5", '"x"'),
    (bool, True, "true", '"maybe"'),
    (Decimal, Decimal("1E+5"), '"1E+5"', '"x"'),
    (date, date(2024, 1, 1), '"2024-01-01"', "2024-01-01"),
    (datetime, datetime(2024, 1, 1, tzinfo=UTC), '"2024-01-01T00:00:00Z"', '"then"'),
    (timedelta, timedelta(days=1), '"P1D"', '"a day"'),
    (uuid.UUID, uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"', '"1"'),
    (Annotated[int, Field(ge=1, description="How many.")], 1, "1", "0"),
    (Annotated[str, Field(max_length=3)], "abc", '"abc"', '"abcd"'),
    (Box[int], Box[int](held=1), '{"held":1}', '{"held":"x"}'),
    (Tree, Tree(value=1, children=[Tree(value=2)]), '{"value":1,"children":[{"value":2,"children":[]}]}', "{}"),
    (Pet, Dog(name="Rex"), '{"kind":"dog","name":"Rex"}', '{"kind":"dog"}'),
    (Scores, Scores({"a": 1}), '{"a":1}', "[]"),
    (Camel, Camel(firstName="A"), '{"firstName":"A"}', "{}"),
    (
        Renamed,
        Renamed.model_validate({"eins": 1, "zwei": 2, "three": 3, "numbers": "[4]"}),
        '{"one":1,"two":2,"three":3,"numbers":"[4]"}',
        '{"eins":1,"zwei":2,"drei":3,"numbers":"[4]"}',
    ),
    (Any, {"a": [None, 1.5, "x"]}, '{"a":[null,1.5,"x"]}', "a"),
]
IDS = [f"{place} {getattr(case[0], '__name__', case[0])!s:.40}" for place, case in enumerate(CASES)]


@pytest.mark.parametrize(("type", "value", "text", "other"), CASES, ids=IDS)
def test_t10_a_value_of_the_type_is_written_and_read_and_another_is_not(
    type: Any, value: Any, text: str, other: str
) -> None:
    structure = of(type)
    assert structure.type is type
    assert structure.text_of(value) == text
    read = structure.parse(text)
    assert read == value
    assert isinstance(read, value.__class__)
    assert structure.accepts(value)
    assert unfit(type, other)


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (Place, {"city": "x"}),
        (Place, '{"city":"x"}'),
        (Money, {"amount": Decimal(1)}),
        (Movie, {"title": "M", "seen": "2024-01-01"}),
        (Color, "red"),
        (date, "2024-01-01"),
        (date, datetime(2024, 1, 1, tzinfo=UTC)),
        (int, True),
        (int, "1"),
        (list[int], (1,)),
        (list[int], ["1"]),
        (Annotated[int, Field(ge=1)], 0),
        (Annotated[int, BeforeValidator(int)], "5"),
        (Json[int], "5"),
        (float, math.inf),
        (float, math.nan),
        (Any, NoSchema()),
        (str | int, "\ud800"),
        (Any, ["\ud800"]),
    ],
)
def test_t10_what_would_have_to_be_read_as_the_type_or_has_no_json_form_is_not_of_it(type: Any, value: Any) -> None:
    assert not of(type).accepts(value)


def test_t10_a_whole_number_is_of_the_type_float_and_a_text_of_one_that_has_it() -> None:
    assert of(float).accepts(3)
    assert of(Literal["a"]).accepts("a")
    assert not of(Literal["a"]).accepts("b")


@pytest.mark.parametrize("value", [math.nan, [{"a": (-math.inf,)}], {math.nan}, NoSchema(), "\udfff", b"\xff"])
def test_t10_what_has_no_json_form_has_no_text(value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - Python's and pydantic's words, by kind
        of(Any if not isinstance(value, bytes) else bytes).text_of(value)


# The text of an answer


@pytest.mark.parametrize(
    "text",
    ["[1]", "  [1]\n", "```json\n[1]\n```", "\n```\n[1]```\n", "```JSON [1] ```", "``` \r\n\r\n[\n1\n]\r\n```  "],
)
def test_t10_json_may_stand_in_one_code_fence(text: str) -> None:
    assert of(list[int]).parse(text) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "```",
        "``````",
        "```json\n```",
        "Here it is: [1]",
        "[1] I hope that helps",
        "```json\n[1]\n``` done",
        "```\n[1]\n```\n```\n[1]\n```",
        "```python\n[1]\n```",
        "```json[1]```",
        "[1",
        "[1,]",
        "['1']",
        "\ud800",
        '["\\ud800"]',
    ],
)
def test_t10_nothing_else_may_stand_around_json(text: str) -> None:
    assert unfit(list[int], text).startswith(("Invalid JSON: ", "Input should be a valid string"))


def test_t10_a_fence_in_a_text_is_part_of_it() -> None:
    assert of(Any).parse('"```json\\n1\\n```"') == "```json\n1\n```"


@pytest.mark.parametrize("type", [float, list[float], Any, dict[str, float], Scores, Place])
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("frame", ["%s", "[%s]", '{"a": %s}', '{"city": "x", "unknown": %s}'])
def test_t10_a_number_that_is_not_finite_does_not_fit(type: Any, number: str, frame: str) -> None:
    assert unfit(type, frame % number)


@pytest.mark.parametrize("text", ['"NaN"', '"inf"', '"\\u006ean"', '"1e999"'])
def test_t10_a_text_that_pydantic_would_take_for_such_a_number_does_not_fit(text: str) -> None:
    assert unfit(float, text) == "every number has to be finite, and JSON knows neither NaN nor Infinity"
    assert unfit(int | list[float], f"[{text}]").startswith("every number has to be finite")


def test_t10_a_whole_number_that_no_float_can_hold_does_not_fit_one() -> None:
    assert unfit(float, "1" + "0" * 400)
    assert of(int).parse("1" + "0" * 400) == 10**400


def test_t10_such_a_text_is_a_text_where_the_type_has_texts() -> None:
    assert of(str | int).parse('"NaN"') == "NaN"


def test_t10_a_type_that_pydantic_would_let_write_infinity_has_none_either() -> None:
    class Wide(BaseModel):
        model_config = ConfigDict(ser_json_inf_nan="strings")
        top: float

    assert of(Wide).parse(of(Wide).text_of(Wide(top=1.5))) == Wide(top=1.5)
    assert not of(Wide).accepts(Wide(top=math.inf))
    assert unfit(Wide, '{"top":"Infinity"}')


def test_t10_a_value_that_cannot_be_written_can_be_read() -> None:
    def fail(value: int) -> int:
        raise KeyError(value)

    mute = Annotated[int, PlainSerializer(fail)]
    assert of(mute).parse("1") == 1
    assert not of(mute).accepts(1)
    assert unfit(mute, "NaN")


@pytest.mark.parametrize("open", ["[", '{"a":', '{"value":1,"children":['])
@pytest.mark.parametrize("type", [Any, Tree, list[Any]])
def test_t10_what_is_nested_without_end_does_not_fit(open: str, type: Any) -> None:
    assert "recursion limit exceeded" in unfit(type, open * 100_000)


def test_t10_deep_nesting_within_the_limit_is_read_by_validators_in_python_too() -> None:
    class Deep(BaseModel):
        inner: list[Deep] = []

        @field_validator("inner", mode="wrap")
        @classmethod
        def through(cls, value: Any, read: Callable[[Any], Any]) -> Any:
            return read(value)

    Deep.model_rebuild(_types_namespace={"Deep": Deep})
    text = '{"inner":[' * 90 + "]}" * 90
    assert of(Deep).text_of(of(Deep).parse(text)) == text


# What does not fit, in words


class Order(BaseModel):
    place: Place
    pay: Money | None = None
    pet: Pet | None = None
    any: int | list[int] | Annotated[str, AfterValidator(str)] = 1
    count: Annotated[int, Field(ge=1)] = 1
    camel: Camel | None = None
    pairs: dict[int, int] = {}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, "place: Field required"),
        ({"place": 1}, "place: Input should be an object"),
        (
            {"place": {"city": "x", "zip": "secret"}},
            "place.zip: Input should be a valid integer, unable to parse string",
        ),
        ({"pay": {"amount": -1}}, "pay: Value error, nobody owes less than nothing"),
        ({"pay": [1]}, "pay: Input should be an object"),
        ({"pet": {"kind": "secret"}}, "pet: 'kind' should be one of 'cat', 'dog'"),
        ({"pet": {"kind": "dog"}}, "pet.dog.name: Field required"),
        ({"any": {}}, "any: Input should be a valid array; any: Input should be a valid string"),
        ({"count": 0}, "count: Input should be greater than or equal to 1"),
        ({"camel": {}}, "camel.firstName: Field required"),
        ({"pairs": {"secret": 1}}, "pairs.secret.[key]: Input should be a valid integer"),
    ],
)
def test_t10_the_model_is_told_what_does_not_fit_field_by_field(answer: Any, words: str) -> None:
    told = unfit(Order, json.dumps(answer))
    assert words in told
    assert not re.search(r"https?:|input_value|\[type=|function-after|middlechain|tests\.", told)
    assert "secret" not in told.replace("pairs.secret", ""), "the answer itself is not quoted, but for names"


def test_t10_the_root_has_no_name() -> None:
    assert unfit(Order, "[]") == "Input should be an object"


def test_t10_at_most_ten_problems_are_told_and_none_at_length() -> None:
    assert unfit(list[int], json.dumps(["x"] * 10)).count("unable to parse") == 10
    told = unfit(list[int], json.dumps(["x"] * 13))
    assert (told.count("unable to parse"), told.rpartition("; ")[2]) == (10, "and 3 more")
    assert len(unfit(dict[str, int], json.dumps({"a" * 10_000: "x"}))) <= 300


def test_t10_what_the_model_is_told_asks_for_another_answer() -> None:
    error = Unfit("count: Input should be greater than or equal to 1")
    assert of(Order).repair(error) == (
        "The answer did not fit: count: Input should be greater than or equal to 1. Answer again, with JSON alone."
    )


def test_t10_exceptions_of_the_types_own_validators_go_through_but_for_pydantics_convention() -> None:
    def fail(value: int) -> int:
        raise {0: ValueError, 1: AssertionError, 2: KeyError, 3: RecursionError}[value]("mine")

    picky = Annotated[int, AfterValidator(fail)]
    assert unfit(picky, "0") == "Value error, mine"
    assert unfit(picky, "1") == "Assertion failed, mine"
    with pytest.raises(KeyError, match="mine"):
        of(picky).parse("2")
    with pytest.raises(RecursionError, match="mine"):
        of(picky).parse("3")
    with pytest.raises(KeyError, match="mine"):
        of(picky).accepts(2)


# What is asked of the model


def asked(type: Any, settings: Settings = Settings()) -> Any:  # noqa: B008 - frozen
    return of(type).settings(settings).extra.get("response_format")


def test_t10_the_schema_of_an_object_goes_with_the_settings() -> None:
    settings = Settings(temperature=0.5, extra={"user": "u"})
    changed = of(Place).settings(settings)
    assert (changed.temperature, changed.extra["user"]) == (0.5, "u")
    assert changed.extra["response_format"] == {
        "type": "json_schema",
        "json_schema": {
            "name": "Place",
            "schema": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "zip": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
                },
                "required": ["city"],
            },
        },
    }
    assert settings == Settings(temperature=0.5, extra={"user": "u"}), "the settings given are not changed"
    assert of(Place).instructions("Be brief.") == "Be brief."


@pytest.mark.parametrize("format", [{"type": "json_object"}, None])
def test_t10_a_response_format_of_the_users_own_wins(format: Any) -> None:
    settings = Settings(extra={"response_format": format})
    assert of(Place).settings(settings) is settings


@pytest.mark.parametrize("type", [list[int], int, Color, Place | None, Pet, Point, Any])
def test_t10_the_schema_of_anything_else_goes_with_the_instructions(type: Any) -> None:
    settings = Settings()
    structure = of(type)
    assert structure.settings(settings) is settings
    prompt = structure.instructions("Be brief.")
    assert prompt == f"Be brief.\n\n{structure.instructions('')}"
    sentence, _, schema = structure.instructions("").partition(": ")
    assert sentence == "Answer with JSON alone that matches this JSON schema"
    assert json.loads(schema) == structure.schema


@pytest.mark.parametrize("type", [Place, Money, Movie, Box[int], dict[str, int], Scores, Tree, Odd])
def test_t10_the_root_of_a_schema_that_is_sent_is_an_object(type: Any) -> None:
    schema = asked(type)["json_schema"]["schema"]
    assert schema["type"] == "object"
    assert "$ref" not in schema
    assert json.loads(json.dumps(schema)) == schema
    assert "title" not in schema


def test_t10_a_recursive_type_refers_to_itself_below_its_root() -> None:
    schema = of(Tree).schema
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert schema["description"] == "A tree."
    assert schema["$defs"]["Tree"]["properties"] == schema["properties"]
    about = of(Annotated[Tree, Field(description="This one.")]).schema
    assert (about["type"], about["description"]) == ("object", "This one.")


def named(title: str) -> Any:
    return type(title, (BaseModel,), {"__module__": __name__})


@pytest.mark.parametrize(
    ("type", "name"),
    [
        (Place, "Place"),
        (Tree, "Tree"),
        (Box[int], "Box_int"),
        (dict[str, int], "answer"),
        (named("天気"), "answer"),
        (named("Größe-1"), "Gr_e-1"),
        (named("A" * 100), "A" * 64),
    ],
)
def test_t10_the_name_of_the_schema_is_one_that_servers_take(type: Any, name: str) -> None:
    assert asked(type)["json_schema"]["name"] == name
    assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", name)


def test_t10_a_default_without_a_json_form_is_left_out_without_a_warning() -> None:
    assert of(Odd).schema["properties"] == {
        "thing": {},
        "count": {"type": "integer", "default": 3},
        "top": {"type": "number"},
    }
    assert of(Odd).parse("{}").count == 3


# What is no type


def test_t10_plain_text_needs_no_structure() -> None:
    assert structure_of(None, "the agent 'triage'") is None
    assert structure_of(str, "the agent 'triage'") is None


def function(a: int) -> int:
    """A function has parameters, and is no type."""
    return a


@pytest.mark.parametrize(
    "given",
    [
        NoSchema,
        NoSchema(),
        list[NoSchema],
        5,
        "int",
        "Missing",
        list["Missing"],  # type: ignore[name-defined]  # noqa: F821 - that is the point
        [int],
        {},
        {"type": "int"},
        function,
        partial(function, 1),
        Callable[[], int],
        Annotated[str, Field(pattern="(")],
        Annotated[Decimal, Field(pattern=b"x")],  # type: ignore[call-overload]  # that is the point
        Unsendable,
        Annotated[int, Field(json_schema_extra={"top": math.inf})],
    ],
)
def test_t10_what_no_schema_can_be_made_of_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^the output of the agent 'triage' is .*no JSON schema can be made"):
        structure_of(given, "the agent 'triage'")


# As laws


class Everything(BaseModel):
    """Many kinds of fields."""

    text: str
    whole: int
    real: float
    truth: bool
    exact: Decimal
    day: date
    moment: datetime
    span: timedelta
    id: uuid.UUID
    color: Color
    choice: Literal["a", 1]
    maybe: int | None
    either: int | str | list[int]
    pair: tuple[int, str]
    names: frozenset[str]
    by_name: dict[str, Point]
    by_number: dict[int, date]
    money: list[Money]
    movie: Movie
    pet: Pet
    tree: Tree
    box: Box[str]
    other: Any = Field(alias="anythingElse")


NUMBERS = st.integers() | st.integers(min_value=2**70)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text()  # without halves of characters
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
MOVIES = st.fixed_dictionaries({"title": TEXT}, optional={"seen": st.dates()})
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
TREES = st.recursive(
    st.builds(Tree, value=NUMBERS),
    lambda inner: st.builds(Tree, value=NUMBERS, children=st.lists(inner, max_size=2)),
    max_leaves=4,
)
EVERYTHING = st.builds(
    Everything,
    text=TEXT,
    whole=NUMBERS,
    real=FINITE,
    truth=st.booleans(),
    exact=DECIMALS,
    day=st.dates(),
    moment=st.datetimes(timezones=st.none() | st.just(UTC) | st.just(timezone(timedelta(minutes=-90)))),
    span=st.timedeltas(min_value=timedelta(days=-9999), max_value=timedelta(days=9999)),
    id=st.uuids(),
    color=st.sampled_from(Color),
    choice=st.sampled_from(["a", 1]),
    maybe=st.none() | NUMBERS,
    either=NUMBERS | TEXT | st.lists(NUMBERS, max_size=3),
    pair=st.tuples(NUMBERS, TEXT),
    names=st.frozensets(TEXT, max_size=3),
    by_name=st.dictionaries(TEXT, st.builds(Point, NUMBERS, FINITE), max_size=2),
    by_number=st.dictionaries(NUMBERS, st.dates(), max_size=2),
    money=st.lists(st.builds(Money, DECIMALS.filter(lambda amount: amount >= 0)), max_size=2),
    movie=MOVIES,
    pet=st.builds(Cat, lives=NUMBERS) | st.builds(Dog, name=TEXT),
    tree=TREES,
    box=st.builds(Box[str], held=TEXT),
    anythingElse=JSON,
)


@given(EVERYTHING)
def test_t10_what_is_written_is_read_back(value: Everything) -> None:
    structure = of(Everything)
    assert structure.accepts(value)
    text = structure.text_of(value)
    assert structure.parse(text) == value
    assert structure.parse(f"```json\n{text}\n```") == value


@given(JSON)
def test_t10_any_json_is_read_as_what_it_says(value: Any) -> None:
    assert of(Any).parse(of(Any).text_of(value)) == value
    assert of(Any).parse(json.dumps(value, indent=1)) == value


PIECES = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        '"',
        ":",
        ",",
        "```",
        "json",
        "\n",
        " ",
        "1",
        "-",
        "e9",
        "NaN",
        "null",
        '"city"',
        "\\u",
        "\\ud800",
    ]
)
KINDS = [
    of(kind) for kind in (Place, Everything, Order, Pet, Tree, list[int], float, Decimal, Any, Color, datetime, Renamed)
]


@given(
    st.sampled_from(KINDS),
    st.lists(PIECES).map("".join)
    | st.text(st.characters(exclude_categories=()))  # with halves of characters
    | JSON.map(json.dumps),
)
def test_t10_whatever_the_model_answers_it_fits_or_is_unfit(structure: Structure, text: str) -> None:
    try:
        value = structure.parse(text)
    except Unfit as error:
        assert 0 < len(str(error)) < 4000
        assert structure.repair(error).encode()
    else:
        assert structure.parse(structure.text_of(value)) == value


def test_t10_reading_goes_on_where_the_stack_is_nearly_used_up() -> None:
    def down(frames: int) -> Any:
        return down(frames - 1) if frames else of(Any).parse("[" * 10_000)

    with pytest.raises(Unfit):
        down(sys.getrecursionlimit() // 2)
