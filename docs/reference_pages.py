"""The API reference of the site: one page for each module of the library and of the lab, made from docstrings.

mkdocs calls `on_config` and `on_files` (see `hooks` in mkdocs.yml). A module with `__all__` shows those names. A new
public module gets a page without being listed here.
"""

import ast
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parent.parent / "src"
LIBRARY, LAB = "asymtrain", "asymtrain.lab"
# The lab has a group of its own, and commands are explained by --help.
LEFT_OUT = {"__init__", "__main__", "lab", "cli"}
# Modules that users import by their own name, in addition to what their package exports.
ALSO_SHOWN = {
    "asymtrain.integrations": ("timm", "transformers", "lightning", "composer", "torchjd"),
    "asymtrain.lab.data": ("subsets", "normalise", "augment"),
    "asymtrain.lab.engine": ("states",),
    "asymtrain.lab.studies.paper": ("recipe", "study", "verdicts"),
    "asymtrain.lab.report": ("table", "figure"),
}


def folder_of(module: str) -> Path:
    """The folder of a package; it does not exist for a module that is one file."""
    return SOURCE / module.replace(".", "/")


def public_modules(package: str) -> list[str]:
    """Modules and packages directly inside a package, without private ones, by full name."""
    inside = [path for path in folder_of(package).iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    names = {path.stem for path in inside if not path.name.startswith("_")} - LEFT_OUT
    return [f"{package}.{name}" for name in sorted(names)]


def groups() -> dict[str, list[str]]:
    """The modules that have a page, by their group in the navigation."""
    return {"Library reference": [LIBRARY, *public_modules(LIBRARY)], "Lab reference": public_modules(LAB)}


def hidden(module: str) -> list[str]:
    """Full names of exports that share their name with a module of the package, such as `engine.plan.plan`.

    mkdocstrings sees one name as one thing, and shows the module in place of the function.
    """
    folder = folder_of(module)
    if not folder.is_dir():
        return []
    # Includes imports below `if TYPE_CHECKING`, of names that are loaded when they are first used.
    tree = ast.parse((folder / "__init__.py").read_text())
    return [
        f"{node.module}.{name.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != module
        for name in node.names
        if (folder / f"{name.name}.py").is_file() or (folder / name.name).is_dir()
    ]


def page(module: str) -> str:
    """The Markdown source of a module's page."""
    parts = [
        f"# {module}",
        f"::: {module}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false",
    ]
    parts += [f"::: {name}" for name in hidden(module)]
    files = [name for name in ALSO_SHOWN.get(module, ()) if (folder_of(module) / f"{name}.py").is_file()]
    parts += [f"::: {module}.{name}" for name in files]
    return "\n\n".join(parts) + "\n"


def address(module: str) -> str:
    """Where a module's page is in the site: `asymtrain.lab.engine` is `reference/lab/engine.md`."""
    return f"reference/{module.removeprefix('asymtrain.').replace('.', '/')}.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages to the navigation: one group for the library, one for the lab."""
    assert config.nav is not None
    config.nav += [{group: [{module: address(module)} for module in modules]} for group, modules in groups().items()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages themselves."""
    for module in (module for modules in groups().values() for module in modules):
        files.append(File.generated(config, address(module), content=page(module)))
    return files
