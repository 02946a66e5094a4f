"""The documentation site: it builds without a warning, its links work, its reference is complete.

Commands in the pages are checked against the program itself.
"""

import functools
import importlib
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NEEDED = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers.python")


def missing():
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError:
            return name
    return None


class Page(HTMLParser):
    """The links of a page, what it loads, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.text, self.links, self.loaded, self.anchors = text, [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon") and given.get("href"):
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if name := missing():
        pytest.skip(f"{name} is not installed: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: it hides warnings from --strict too.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return {file.relative_to(folder).as_posix(): Page(file.read_text()) for file in folder.rglob("*.html")} | {
        file.relative_to(folder).as_posix(): None for file in folder.rglob("*") if file.suffix != ".html"
    }


@pytest.mark.xdist_group("docs_site")
def test_links_work(site):
    dead = []
    for name, page in site.items():
        if page is None or name == "404.html":  # which is served at any depth, from the root
            continue
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = os.path.normpath(f"{Path(name).parent}/{unquote(parts.path)}") if parts.path else name
            path = path if path in site else f"{path}/index.html"
            found = path in site
            if found and parts.fragment and site[path] is not None:
                found = unquote(parts.fragment) in site[path].anchors
            if not found:
                dead.append(f"{name}: {link}")
    assert sum(page is not None for page in site.values()) > 30
    assert not dead


@pytest.mark.xdist_group("docs_site")
def test_pages_load_nothing_from_elsewhere(site):
    loaded = {link for page in site.values() if page for link in page.loaded}
    assert loaded
    assert not [link for link in loaded if urlsplit(link).netloc]


@pytest.mark.xdist_group("docs_site")
def test_the_reference_has_every_public_class_and_function(site):
    patterns = ("asymtrain/__init__.py", "asymtrain/*/__init__.py", "asymtrain/lab/*/__init__.py")
    folders = [file.parent for pattern in patterns for file in (ROOT / "src").glob(pattern)]
    absent = []
    for package in (".".join(folder.relative_to(ROOT / "src").parts) for folder in folders):
        module = importlib.import_module(package)
        address = package.removeprefix("asymtrain.").replace(".", "/")
        anchors = getattr(site.get(f"reference/{address}.html"), "anchors", set())
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                shown = {f"{package}.{name}", f"{package}.{name}.{name}", f"{thing.__module__}.{name}"}
                absent += [] if shown & anchors else [f"{package}.{name}"]
    assert not absent


@pytest.mark.xdist_group("docs_site")
def test_examples_of_docstrings_are_code(site):
    page = (site["reference/branches.html"]).text
    assert "&gt;&gt;&gt; " in page
    assert "<blockquote>" not in page


def commands_of(text):
    """Lines of sh and console blocks that call the program."""
    for block in re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.removeprefix("$ ")
            if command.startswith("asymtrain "):  # other lines are what it printed, with apostrophes
                yield shlex.split(command, comments=True)[1:]


@functools.cache
def load_command(name):
    return importlib.import_module("asymtrain.lab.cli.app").load_command(name)


def unknown_word(words):
    """The first word of a command that the program does not know, if any."""
    first, *rest = words
    if first.startswith("--"):
        return None if first in ("--help", "--version") else first
    if first not in importlib.import_module("asymtrain.lab.cli").COMMANDS:
        return first
    command = load_command(first)
    for word in rest:
        if hasattr(command, "get_command"):  # a group, which may load its commands when they are called
            command = command.get_command(None, word)
            if command is None:
                return word
        elif word.startswith("--"):
            known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
            if word.partition("=")[0] not in {*known, "--help"}:
                return word
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page):
    wrong = [" ".join(words) for words in commands_of(page.read_text()) if unknown_word(words)]
    assert not wrong


def test_a_wrong_command_is_found():
    (words,) = commands_of("```sh\n$ asymtrain run --arch vit \\\n  --alpha 0.5  # a comment\n```\n")
    assert words == ["run", "--arch", "vit", "--alpha", "0.5"]
    assert unknown_word(words) is None
    assert unknown_word(["run", "--alhpa", "0.5"]) == "--alhpa"
    assert unknown_word(["measure", "nothing"]) == "nothing"
    assert unknown_word(["ruin"]) == "ruin"
    assert unknown_word(["--verison"]) == "--verison"


def test_scripts_that_pages_name_are_there():
    named = {
        (page, script)
        for page in PAGES
        for script in re.findall(r"\b(?:benchmarks|examples)/\w+\.py", page.read_text())
    }
    assert named
    assert not [f"{page.name}: {script}" for page, script in named if not (ROOT / script).is_file()]
