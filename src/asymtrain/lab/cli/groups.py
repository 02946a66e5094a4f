"""Options as dataclasses: each is declared once, typed once and passed whole.

A command takes groups of options, and `flattened` shows Typer their fields as the command's own parameters:

    @dataclass(frozen=True)
    class DeviceOptions:
        device: Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:1.")] = None

    @flattened
    def run(context: typer.Context, where: DeviceOptions, json: Annotated[bool, JSON] = False) -> None: ...

A command that needs another default derives the group and gives the field anew. The shared groups are in options.py.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def flattened(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with each dataclass parameter replaced by the fields of the dataclass, in their order."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: dict[str, inspect.Parameter] = {}

    def add(name: str, default: Any, annotation: Any) -> None:
        assert name not in parameters, f"two groups of {command.__name__} have an option {name}"
        kind = inspect.Parameter.KEYWORD_ONLY  # so that an argument may follow an option that has a default
        parameters[name] = inspect.Parameter(name, kind, default=default, annotation=annotation)

    for name, parameter in inspect.signature(command).parameters.items():
        annotation = hints.get(name, parameter.annotation)
        if not (isinstance(annotation, type) and dataclasses.is_dataclass(annotation)):
            add(name, parameter.default, annotation)
            continue
        groups[name] = annotation
        types = get_type_hints(annotation, include_extras=True)
        for field in dataclasses.fields(annotation):
            required = field.default is dataclasses.MISSING
            add(field.name, inspect.Parameter.empty if required else field.default, types[field.name])

    def call(**values: Any) -> Any:
        grouped = {
            name: group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        return command(**values, **grouped)

    functools.update_wrapper(call, command)
    del call.__wrapped__  # type: ignore[attr-defined]  # Typer would look through to the groups
    call.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return call
