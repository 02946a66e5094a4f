"""Options as dataclasses: each is declared once, typed once and passed whole.

A command takes groups of options, and `flattened` shows Typer their fields as the command's own parameters:

    @dataclass(frozen=True)
    class DeviceOptions:
        heading = "Where"
        device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1.")] = None

    @flattened
    def run(context: typer.Context, where: DeviceOptions, json: Annotated[bool, JSON] = False) -> None: ...

A command that needs another default derives the group and redefines the field. Options that it lacks are named in
`without`, and keep their defaults. The shared groups are in options.py.
The options of a group stand in the help under its `heading`.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from copy import copy
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import OptionInfo


def flattened(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with each dataclass parameter replaced by the fields of the dataclass, in their order."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: dict[str, inspect.Parameter] = {}

    def add(name: str, default: Any, annotation: Any, heading: str | None = None) -> None:
        assert name not in parameters, f"two groups of {command.__name__} have an option {name}"
        kind = inspect.Parameter.KEYWORD_ONLY  # so that an argument may follow an option that has a default
        option = _with_heading(annotation, heading)
        parameters[name] = inspect.Parameter(name, kind, default=default, annotation=option)

    for name, parameter in inspect.signature(command).parameters.items():
        annotation = hints.get(name, parameter.annotation)
        if not (isinstance(annotation, type) and dataclasses.is_dataclass(annotation)):
            add(name, parameter.default, annotation)
            continue
        groups[name] = annotation
        types = get_type_hints(annotation, include_extras=True)
        for field in shown_fields(annotation):
            required = field.default is dataclasses.MISSING
            default = inspect.Parameter.empty if required else field.default
            add(field.name, default, types[field.name], getattr(annotation, "heading", None))

    def call(**values: Any) -> Any:
        grouped = {
            name: group(**{field.name: values.pop(field.name) for field in shown_fields(group)})
            for name, group in groups.items()
        }
        return command(**values, **grouped)

    functools.update_wrapper(call, command)
    del call.__wrapped__  # type: ignore[attr-defined]  # Typer would look through to the groups
    call.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return call


def shown_fields(group: Any) -> list["dataclasses.Field[Any]"]:
    """The fields of a group that are options of the command."""
    return [field for field in dataclasses.fields(group) if field.name not in getattr(group, "without", ())]


def _with_heading(annotation: Any, heading: str | None) -> Any:
    """The option as its help shows it: under a heading."""
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, *marks = get_args(annotation)
    marks = [copy(mark) for mark in marks]  # groups share them
    for option in marks:
        if isinstance(option, OptionInfo):
            option.rich_help_panel = option.rich_help_panel or heading
    return Annotated[kind, *marks]
