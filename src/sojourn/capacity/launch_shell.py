"""Splits shell text into commands and words as a shell would read them. Nothing is executed.

Quotes, line continuations, comments, operators, variables set in the text itself, `${NAME:-else}`.
A command substitution stays as it is written: what it would print is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from sojourn.errors import InputError

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT: Final = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
_VARIABLE: Final = re.compile(
    rf"\$(?:\{{({_NAME})(?:(:?[-=?+])([^{{}}]*))?\}}|({_NAME})|\(({_NAME})\))"
)
_LITERAL: Final = "\x00"
"""Stands for a dollar that is no variable (single quotes, backslash) until variables are in."""
_ARRAY: Final = "\x01"
"""Begins the first word of an array's assignment."""
_ELEMENTS: Final = re.compile(rf"\$\{{({_NAME})\[[@*]\]\}}")
_HERE: Final = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?")
_EXPORTS: Final = frozenset({"export", "declare", "local", "readonly", "typeset", "set", "env"})
MAX_CHARACTERS: Final = 1_000_000
"""Of one word, and of all words, once variables are put in: `A=$A$A` in 40 lines would be 10^12."""
MAX_VARIABLES: Final = 1_000
"""Set by one text; each command has them all."""
_OPERATORS: Final = frozenset(";|&()\n")


class Word(NamedTuple):
    """One word, the line it begins in (1-based), and whether a quote was part of it."""

    text: str
    line: int
    quoted: bool = False


class _Scanner:
    """One pass over the text, a character at a time."""

    def __init__(self, text: str, where: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.where = where
        self.at = 0
        self.line = 1
        self.commands: list[list[Word]] = [[]]
        self.current: list[str] | None = None
        self.begun = 1
        self.quotes = False
        self.in_array = False
        self.ends: list[str] = []
        self.documents: list[str] = []

    def scan(self) -> list[list[Word]]:
        while self.at < len(self.text):
            self._step(self.text[self.at])
        self._end_word()
        return [command for command in self.commands if command]

    def _step(self, sign: str) -> None:
        if sign == "\\":
            self._backslash()
        elif sign in "'\"":
            self._quoted(sign)
        elif sign == "$" and self.text.startswith("$(", self.at):
            self._substitution()
        elif sign == "#" and self.current is None:
            self.at = self._line_end()
        elif (sign == "<" and self._here_document()) or (sign == "(" and self._opens_array()):
            return
        elif sign in _OPERATORS and not self._redirects(sign):
            self._operator(sign)
        elif sign.isspace():
            self._end_word()
            self._advance(1)
        else:
            self._add(sign)
            self._advance(1)

    def _operator(self, sign: str) -> None:
        self._end_word()
        if self.in_array and sign == "\n":
            self._advance(1)
            return
        self.in_array = False
        self.commands.append([])
        self._advance(1)
        if sign == "\n":
            while self.ends:
                self._skip_document(self.ends.pop(0))

    def _opens_array(self) -> bool:
        """`NAME=(a b)` and `NAME+=(c)`: a command of its own, which begins with the name."""
        before = "".join(self.current or ())
        if not re.fullmatch(rf"{_NAME}\+?=", before):
            return False
        self.current = None
        self.commands.append([Word(_ARRAY + before[:-1], self.begun)])
        self.in_array = True
        self._advance(1)
        return True

    def _here_document(self) -> bool:
        """`<<EOF`: the lines to EOF are no commands; they are kept aside."""
        match = _HERE.match(self.text, self.at)
        if match is None:
            return False
        self._end_word()
        self.ends.append(match[1])
        self._advance(match.end() - self.at)
        return True

    def _skip_document(self, end: str) -> None:
        begun = self.at
        while self.at < len(self.text):
            stop = self._line_end()
            line = self.text[self.at : stop].strip()
            if line == end:
                break
            self._advance(stop + 1 - self.at)
        self.documents.append(self.text[begun : self.at])
        self._advance(min(self._line_end(), len(self.text)) - self.at)

    def _redirects(self, sign: str) -> bool:
        """`2>&1` holds an ampersand that separates nothing."""
        return sign == "&" and self.at > 0 and self.text[self.at - 1] in "<>"

    def _line_end(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _advance(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def _add(self, text: str) -> None:
        if self.current is None:
            self.current, self.begun, self.quotes = [], self.line, False
        self.current.append(text)

    def _end_word(self) -> None:
        if self.current is not None:
            self.commands[-1].append(Word("".join(self.current), self.begun, self.quotes))
            self.current = None

    def _backslash(self) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if following != "\n":
            self._add(_LITERAL if following == "$" else following)
        self._advance(2)

    def _quoted(self, quote: str) -> None:
        begun, at = self.line, self.at + 1
        self._add("")
        self.quotes = True
        while at < len(self.text) and self.text[at] != quote:
            if quote == '"' and self.text[at] == "\\" and self.text[at + 1 : at + 2]:
                following = self.text[at + 1]
                kept = "" if following == "\n" else following
                self._add(
                    f"\\{following}" if following not in '"\\$`\n' else kept.replace("$", _LITERAL)
                )
                at += 2
                continue
            self._add(_LITERAL if quote == "'" and self.text[at] == "$" else self.text[at])
            at += 1
        if at >= len(self.text):
            raise InputError(
                f"a {quote} that opens here is never closed",
                path=self.where,
                row=begun,
                todo="Close the quote, or give the command line as it is in the file",
            )
        self._advance(at + 1 - self.at)

    def _substitution(self) -> None:
        depth, at = 0, self.at + 1
        while at < len(self.text):
            depth += {"(": 1, ")": -1}.get(self.text[at], 0)
            at += 1
            if depth == 0:
                break
        self._add(self.text[self.at : at])
        self._advance(at - self.at)


def commands(
    text: str, where: str, variables: Mapping[str, str] | None = None
) -> Iterator[tuple[dict[str, str], list[Word]]]:
    """Each command with the variables set for it, and its words. Every branch of an `if` is read.

    Raises:
        InputError: a quote is never closed, or variables grow past all bounds.
    """
    known = dict(variables or {})
    arrays: dict[str, list[Word]] = {}
    left = MAX_CHARACTERS
    for words in _Scanner(text, where).scan():
        if words[0].text.startswith(_ARRAY):
            _array(words, arrays, known)
            left = _within(left, arrays[words[0].text.removeprefix(_ARRAY).rstrip("+")], where)
            continue
        local: dict[str, str] = {}
        rest = list(words)
        if rest[0].text in _EXPORTS:
            rest = rest[1:]
        while rest and (match := _ASSIGNMENT.fullmatch(rest[0].text)):
            local[match[1]] = expand(match[2], {**known, **local}, where)
            rest = rest[1:]
        if not rest or words[0].text in _EXPORTS - {"env"}:
            known.update(local)
            if len(known) > MAX_VARIABLES:
                raise InputError(
                    f"sets more than {MAX_VARIABLES:,} variables", path=where, todo=_CUT
                )
        if rest:
            scope = {**known, **local}
            expanded = _expanded(rest, scope, arrays)
            left = _within(left, expanded, where)
            yield scope, expanded


_CUT: Final = "Cut out the engine's command"


def _within(left: int, words: list[Word], where: str) -> int:
    """Characters that may still come after these words.

    Raises:
        InputError: none are left.
    """
    left -= sum(len(word.text) + 1 for word in words)
    if left < 0:
        raise _grown(where)
    return left


def _grown(where: str) -> InputError:
    return InputError(
        f"variables put into one another make more than {MAX_CHARACTERS:,} characters",
        path=where,
        todo=_CUT,
    )


def here_documents(text: str, where: str) -> tuple[str, ...]:
    """The texts between `<<EOF` and `EOF`: manifests that a script writes.

    Raises:
        InputError: a quote is never closed.
    """
    scanner = _Scanner(text, where)
    scanner.scan()
    return tuple(scanner.documents)


def _array(words: list[Word], arrays: dict[str, list[Word]], scope: Mapping[str, str]) -> None:
    """`NAME=(...)` sets, `NAME+=(...)` adds."""
    name = words[0].text.removeprefix(_ARRAY)
    before = arrays.get(name[:-1], []) if name.endswith("+") else []
    arrays[name.removesuffix("+")] = before + _expanded(words[1:], scope, arrays)


def _expanded(
    words: list[Word], scope: Mapping[str, str], arrays: Mapping[str, list[Word]]
) -> list[Word]:
    """Variables put in: an array gives its words, an unquoted value is split at spaces."""
    found: list[Word] = []
    for word in words:
        whole = _ELEMENTS.fullmatch(word.text)
        if whole is not None and whole[1] in arrays:
            found += arrays[whole[1]]
            continue
        text = expand(word.text, scope)
        if (
            word.quoted
            or not word.text.startswith("$")
            or not _VARIABLE.fullmatch(word.text)
            or unresolved(text)
        ):
            found.append(word._replace(text=text))
        else:
            found += [word._replace(text=part) for part in text.split()]
    return found


def expand(text: str, scope: Mapping[str, str], where: str = "launch") -> str:
    """Variables that are known put in: `$A`, `${A}`, `${A:-else}`, and Kubernetes' `$(A)`.

    Raises:
        InputError: the text grows past all bounds.
    """
    grown = 0

    def value(match: re.Match[str]) -> str:
        nonlocal grown
        name = match[1] or match[4] or match[5]
        operator, other = match[2] or "", match[3] or ""
        if scope.get(name) and "+" not in operator:
            found = scope[name]
        elif operator in (":-", "-", ":=", "="):
            found = expand(other, scope, where)
        else:
            found = scope.get(name, match[0])
        grown += len(found)
        if grown > MAX_CHARACTERS:
            raise _grown(where)
        return found

    return _VARIABLE.sub(value, text).replace(_LITERAL, "$")


def unresolved(text: str) -> bool:
    """Whether a variable or a command substitution is left in a value."""
    return bool(re.search(r"\$[A-Za-z_({]|`|\{\{", text))
