"""Examples in docstrings as code: the reference would show lines that begin with >>> as quotations."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^([ ]*)>>> .*\n?(?:^\1(?!```)\S.*\n?|^\1[ ]+\S.*\n?)*", re.MULTILINE)


def fenced(text: str) -> str:
    """The text with each example in a fence; an example ends at an empty line."""
    return EXAMPLE.sub(lambda match: f"{match[1]}```pycon\n{match[0].rstrip()}\n{match[1]}```\n", text)


class DocstringExamples(griffe.Extension):
    """Puts fences around the examples of every docstring of a package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called by griffe when the package is read."""
        self._visit(pkg)

    def _visit(self, thing: griffe.Object) -> None:
        if thing.docstring is not None:
            thing.docstring.value = fenced(thing.docstring.value)
        for member in thing.members.values():
            if isinstance(member, griffe.Object):
                self._visit(member)
