"""Options as dataclasses: each is declared once, typed once and passed whole.

A command takes groups of options, and `flattened` shows Typer their fields as the command's own parameters:

    @dataclass(frozen=True)
    class Device:
        device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1.")] = None

    @flattened
    def run(context: typer.Context, where: Device, json: Json = False) -> None: ...

A command that needs another default derives the group and gives the field anew.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def flattened(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the fields of its dataclass parameters in their place, in their order."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    shown: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints.get(name, parameter.annotation)
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            shown[name] = parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        groups[name] = kind
        types = get_type_hints(kind, include_extras=True)
        for field in dataclasses.fields(kind):
            assert field.name not in shown, f"two groups of {command.__name__} have an option {field.name}"
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            shown[field.name] = inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[field.name]
            )

    def call(**values: Any) -> Any:
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in groups.items()
        }
        return command(**values, **made)

    functools.update_wrapper(call, command)
    del call.__wrapped__  # type: ignore[attr-defined]  # Typer would look through to the groups
    call.__signature__ = inspect.Signature(list(shown.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {name: parameter.annotation for name, parameter in shown.items()}
    return call
