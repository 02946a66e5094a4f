"""The API reference of the site: one page for each room of the package, made from docstrings while the site is built.

mkdocs calls `on_config` and `on_files` (see `hooks` in mkdocs.yml). A room with `__all__` shows those names; a new room
gets its page by being there.
"""

import ast
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PACKAGE = Path(__file__).parent.parent / "src" / "asymtrain"
# Commands explain themselves by --help.
LEFT_OUT = {"__init__", "__main__", "cli"}
# Modules that users import by their own name, beside what their room re-exports.
BESIDE = {
    "data": ("subsets", "normalise", "augment"),
    "engine": ("states",),
    "integrations": ("lightning", "transformers", "torchjd"),
    "paper": ("recipe", "rule", "verdicts"),
}


def rooms() -> list[str]:
    """The package's modules and subpackages, by name."""
    found = [path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return sorted(set(found) - LEFT_OUT)


def hidden(room: str) -> list[str]:
    """Where exports are defined that share their name with a module of the room, such as `engine.plan.plan`.

    The module hides them from the reader of docstrings, which sees one name as one thing.
    """
    folder = PACKAGE / room
    if not folder.is_dir():
        return []
    # Also those below `if TYPE_CHECKING`, of names that are loaded when they are used.
    tree = ast.parse((folder / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [
        f"{node.module}.{name.name}"
        for node in imports
        for name in node.names
        if node.module != "asymtrain" and ((folder / f"{name.name}.py").is_file() or (folder / name.name).is_dir())
    ]


def page(room: str) -> str:
    """The source of a room's page; "" is the package itself."""
    name = f"asymtrain.{room}" if room else "asymtrain"
    parts = [f"# {name}", f"::: {name}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false"]
    parts += [f"::: {place}" for place in hidden(room)]
    for module in BESIDE.get(room, ()):
        if (PACKAGE / room / f"{module}.py").is_file():
            parts += [f"::: {name}.{module}"]
    return "\n\n".join(parts) + "\n"


def address(room: str) -> str:
    """Where a room's page lies in the site."""
    return f"reference/{room or 'asymtrain'}.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages to the navigation, below API."""
    assert config.nav is not None
    section = next(entry["API"] for entry in config.nav if "API" in entry)
    section += [{f"asymtrain.{room}" if room else "asymtrain": address(room)} for room in ("", *rooms())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages themselves."""
    for room in ("", *rooms()):
        files.append(File.generated(config, address(room), content=page(room)))
    return files
