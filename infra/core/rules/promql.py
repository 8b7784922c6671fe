"""What a PromQL query gives, as far as its text shows: how many elements, and of which metrics.

Source: Prometheus 3.5, promql/parser (operators, aggregations, vector matching). What this reader does not know it does
not judge, so that a query in newer syntax is no mistake.
"""

import re
from dataclasses import dataclass
from typing import Final

_TOKEN = re.compile(
    r"(?P<space>\s+|\#[^\n]*)"
    r"|(?P<string>\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`[^`]*`)"
    # Selectors and ranges are one token each: nothing in them changes how many elements there are.
    r"|(?P<matchers>\{(?:\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`[^`]*`|[^{}\"'`])*\})"
    r"|(?P<range>\[[^\[\]]*\])"
    r"|(?P<number>\.?\d[\w.]*(?:(?<=[eE])[+-]\d+)?|(?:[iI]nf|[nN]a[nN])\b)"
    r"|(?P<name>[a-zA-Z_:][\w:]*)"
    r"|(?P<sign>==|!=|>=|<=|[-+*/%^<>@,()])"
)
_AGGREGATIONS = {"sum", "min", "max", "avg", "count", "group", "stddev", "stdvar", "quantile"}
_CHOICES = {"topk", "bottomk", "limitk"}
_AGGREGATORS = _AGGREGATIONS | _CHOICES | {"count_values", "limit_ratio"}
_LISTED = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_OPERATORS: tuple[frozenset[str], ...] = (
    frozenset({"or"}),
    frozenset({"and", "unless"}),
    frozenset({"==", "!=", ">", "<", ">=", "<="}),
    frozenset({"+", "-"}),
    frozenset({"*", "/", "%", "atan2"}),
    frozenset({"^"}),
)
_WORDS = {"or", "and", "unless", "atan2", "bool", "offset", "start", "end", "anchored", "smoothed"}


class UnreadableQueryError(Exception):
    """The text is no PromQL: a quote or a bracket is open, or there is a character that PromQL does not have."""


class _NotKnownError(Exception):
    """Syntax that this reader does not know."""


@dataclass(frozen=True)
class Result:
    """What a query gives.

    ``labels`` are those in which elements may differ; None where that is not known. A vector whose elements cannot
    differ has one element at most.
    """

    scalar: bool = False
    single: bool = False
    labels: frozenset[str] | None = None


_SCALAR: Final = Result(scalar=True, single=True, labels=frozenset())
#: One element without labels.
_ONE: Final = Result(single=True, labels=frozenset())
#: Functions that give the same whatever they are asked.
_FIXED: Final = {
    **dict.fromkeys(("scalar", "time", "pi"), _SCALAR),
    **dict.fromkeys(("absent", "absent_over_time"), Result(single=True)),
    "vector": _ONE,
}


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str


def _tokens(query: str) -> list[_Token]:
    found: list[_Token] = []
    place = depth = 0
    while place < len(query):
        match = _TOKEN.match(query, place)
        if match is None:
            raise UnreadableQueryError(query[place : place + 20])
        place = match.end()
        if match.lastgroup != "space":
            found.append(_Token(str(match.lastgroup), match.group()))
        depth += {"(": 1, ")": -1}.get(match.group(), 0)
        if depth < 0:
            raise UnreadableQueryError(query[match.start() : match.start() + 20])
    if depth:
        raise UnreadableQueryError("the end: a bracket is open")
    return found


def metrics(query: str) -> frozenset[str]:
    """Names of the metrics that are read, those with a colon included. Raises UnreadableQueryError."""
    tokens = [*_tokens(query), _Token("end", "")]
    found: set[str] = set()
    inside = False
    for index, token in enumerate(tokens[:-1]):
        if inside:
            inside = token.text != ")"
        elif token.kind == "name" and token.text in _LISTED:
            inside = tokens[index + 1].text == "("
        elif token.kind == "name" and token.text not in _WORDS | _AGGREGATORS and tokens[index + 1].text != "(":
            found.add(token.text)
    return frozenset(found)


def result_of(query: str) -> Result | None:
    """What ``query`` gives; None where this reader does not know its syntax. Raises UnreadableQueryError."""
    reader = _Reader(_tokens(query))
    try:
        found = reader.expression(0)
    except (_NotKnownError, RecursionError):
        # Brackets can be nested deeper than Python goes.
        return None
    return found if reader.at_end() else None


class _Reader:
    """Recursive descent over the tokens, from the weakest operator to the strongest."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = [*tokens, _Token("end", "")]
        self._place = 0

    def at_end(self) -> bool:
        return self._next.kind == "end"

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _take(self, text: str | None = None) -> _Token:
        token = self._next
        if token.kind == "end" or (text is not None and token.text != text):
            raise _NotKnownError(token.text)
        self._place += 1
        return token

    def _given(self, *texts: str) -> str | None:
        """The next token when it is one of ``texts``, which is taken then."""
        if self._next.kind in {"name", "sign"} and self._next.text in texts:
            return self._take().text
        return None

    def expression(self, level: int) -> Result:
        if level == len(_OPERATORS):
            return self._unary()
        left = self.expression(level + 1)
        while operator := self._given(*_OPERATORS[level]):
            self._given("bool")
            matching = self._matching()
            # `^` is the only operator that binds to the right, which is the same for the number of elements.
            left = _combined(operator, left, self.expression(level + 1), matching)
        return left

    def _matching(self) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        while word := self._given("on", "ignoring", "group_left", "group_right"):
            # A bracket right after group_left is its list of labels, never an operand.
            found[word] = self._labels() if self._next.text == "(" else frozenset()
        return found

    def _labels(self) -> frozenset[str]:
        self._take("(")
        found: set[str] = set()
        while (token := self._take()).text != ")":
            if token.text != ",":
                found.add(token.text.strip("\"'`"))
        return frozenset(found)

    def _unary(self) -> Result:
        if self._given("-", "+"):
            return self._unary()
        found = self._primary()
        while True:
            if self._next.kind == "range":
                self._take()
            elif self._given("offset"):
                self._given("-", "+")
                self._take()
            elif self._given("@"):
                self._given("-", "+")
                if self._take().kind == "name":
                    self._take("(")
                    self._take(")")
            elif not self._given("anchored", "smoothed"):
                return found

    def _primary(self) -> Result:
        token = self._take()
        match token.kind:
            case "number" | "string":
                return _SCALAR
            case "matchers":
                return Result()
            case "name" if token.text in _AGGREGATORS:
                return self._aggregation(token.text)
            case "name" if self._next.text == "(":
                return _called(token.text, self._arguments())
            case "name" if token.text not in _WORDS | _LISTED:
                if self._next.kind == "matchers":
                    self._take()
                return Result()
        if token.text == "(":
            inner = self.expression(0)
            self._take(")")
            return inner
        raise _NotKnownError(token.text)

    def _arguments(self) -> list[tuple[str, Result]]:
        """The arguments of a call, each with its first token."""
        self._take("(")
        found: list[tuple[str, Result]] = []
        while not self._given(")"):
            first = self._next.text
            found.append((first, self.expression(0)))
            if self._next.text != ")":
                self._take(",")
        return found

    def _aggregation(self, name: str) -> Result:
        grouping = self._grouping()
        arguments = self._arguments()
        grouping = grouping or self._grouping()
        if not arguments:
            raise _NotKnownError(name)
        parameter, inner = arguments[0][0], arguments[-1][1]
        if name in _CHOICES:
            return Result(single=inner.single or (parameter == "1" and grouping is None), labels=inner.labels)
        if name == "limit_ratio":
            return inner
        labels = _grouped(inner.labels, grouping)
        if name == "count_values":
            return Result(labels=None if labels is None else labels | {parameter.strip("\"'`")})
        return Result(single=labels == frozenset() or inner.single, labels=labels)

    def _grouping(self) -> tuple[str, frozenset[str]] | None:
        word = self._given("by", "without")
        return (word, self._labels()) if word else None


def _grouped(labels: frozenset[str] | None, grouping: tuple[str, frozenset[str]] | None) -> frozenset[str] | None:
    if grouping is None:
        return frozenset()
    word, named = grouping
    if word == "by":
        return named if labels is None else named & labels
    return None if labels is None else labels - named


def _called(name: str, arguments: list[tuple[str, Result]]) -> Result:
    if name in _FIXED:
        return _FIXED[name]
    if not arguments:
        # hour(), month() and the like take the time of the query.
        return _ONE
    vector = next((result for _, result in arguments if not result.scalar), _SCALAR)
    if name in {"label_replace", "label_join"}:
        return Result(single=vector.single)
    if name in {"histogram_quantile", "histogram_fraction"}:
        labels = None if vector.labels is None else vector.labels - {"le"}
        return Result(single=vector.single or labels == frozenset(), labels=labels)
    # Every other function keeps its elements apart as they are.
    return vector


def _combined(operator: str, left: Result, right: Result, matching: dict[str, frozenset[str]]) -> Result:
    if operator == "or":
        alone = matching.get("on") == frozenset() or (left.labels == right.labels == frozenset())
        both = None if left.labels is None or right.labels is None else left.labels | right.labels
        return Result(single=left.single and right.single and alone, labels=both)
    if operator in {"and", "unless"}:
        return left
    if left.scalar:
        return right
    if right.scalar or "group_left" in matching:
        return left
    if "group_right" in matching:
        return right
    # One to one: an element of one side meets one of the other at most.
    if "on" in matching:
        labels: frozenset[str] | None = matching["on"]
    elif left.labels is None or right.labels is None:
        labels = left.labels if right.labels is None else right.labels
    else:
        labels = left.labels & right.labels
    if labels is not None:
        labels -= matching.get("ignoring", frozenset())
    return Result(single=left.single or right.single or labels == frozenset(), labels=labels)
