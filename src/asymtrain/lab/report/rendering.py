"""Templates of the pages, found by the package alone."""

from pathlib import Path
from typing import Any

import jinja2


def render_template(template: str, /, **values: Any) -> str:
    """A template of the folder `templates` with its values; a name that is not given is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
